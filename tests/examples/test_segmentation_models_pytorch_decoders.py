"""smp and timm import torchvision, for which tests have a stand-in: the pyramid and its decoders use nothing of it."""
import runpy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.examples.conftest import EXAMPLES

NAME = 'segmentation_models_pytorch_decoders.py'
SIZES = ((1, 1), (33, 47), (65, 97), (64, 96))
DECODERS = ('Unet', 'UnetPlusPlus', 'MAnet', 'Linknet', 'FPN', 'PSPNet', 'UPerNet', 'Segformer')
# Decoders make layers also for the map without channels.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore:Initializing zero-element tensors:UserWarning')]


@pytest.fixture(scope='module')
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / NAME))


def build(example: dict[str, Any], decoder: str, **arguments: object) -> nn.Module:
    return getattr(example['smp'], decoder)(example['NAME'], encoder_weights=None, classes=2, **arguments).eval()


@torch.no_grad()
@pytest.mark.parametrize('decoder', DECODERS)
def test_logits_have_the_size_of_the_image(decoder: str, example: dict[str, Any]) -> None:
    model = build(example, decoder)
    for size in SIZES:
        assert example['segment'](model, torch.randn(1, 3, *size)).shape == (1, 2, *size)


@torch.no_grad()
def test_images_are_padded_only_for_decoders_that_need_it(example: dict[str, Any]) -> None:
    image = torch.randn(1, 3, 33, 97)
    padded = nn.functional.pad(image, (0, 128 - 97, 0, 64 - 33))
    unet, fpn = build(example, 'Unet'), build(example, 'FPN')
    assert torch.equal(example['segment'](unet, image), unet(image))
    assert torch.equal(example['segment'](fpn, image), fpn(padded)[..., :33, :97])


@torch.no_grad()
@pytest.mark.parametrize(('arguments', 'strides'), [
    (dict(), [1, 2, 4, 8, 16, 32]),
    (dict(in_channels=5, encoder_depth=4, decoder_channels=(32, 16, 8, 8)), [1, 2, 4, 8, 16]),
])
def test_the_decoder_gets_the_maps_of_the_pyramid(arguments: dict[str, Any], strides: list[int],
                                                  example: dict[str, Any]) -> None:
    encoder = build(example, 'Unet', **arguments).encoder
    image = torch.randn(2, arguments.get('in_channels', 3), 70, 33)
    maps = encoder(image)
    assert [x.shape[2:] for x in maps] == [(-(-70 // stride), -(-33 // stride)) for stride in strides]
    assert [x.shape[1] for x in maps] == encoder.out_channels
    assert maps[0] is image and encoder.output_stride == strides[-1]
    assert all(map(torch.equal, maps[2:], encoder.backbone(image)))


def test_the_whole_model_learns(example: dict[str, Any]) -> None:
    model = build(example, 'Unet').train()
    example['segment'](model, torch.randn(2, 3, 65, 97)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.encoder.parameters())


def test_the_example_shows_four_decoders(run_example: Callable[..., dict], capsys: pytest.CaptureFixture) -> None:
    run_example(NAME)
    lines = [f'{decoder}: (1, 3, 65, 97)' for decoder in ('Unet', 'FPN', 'UPerNet', 'Segformer')]
    assert capsys.readouterr().out.splitlines() == lines
