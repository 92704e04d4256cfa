"""The GPU computes the reference outputs, and what the CPU computes, in each precision."""
import itertools
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cpvt_mm import CPVT
from tests.conftest import BACKBONES, GOLDEN, WITH_CP, golden_cases, pretrained
from tests.encodings import ENCODINGS
from tests.models.test_exact_padding import SIZES, assert_maps_are_those_of_alone
from tests.weights.test_formats import shaken

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# Allowed differences from float64, as shares of a norm and in units of the precision's eps, the step from 1 to the next
# number. An image passes up to nine blocks, whose layers round a few times each. Most of these errors cancel: a CPU has
# 5 and 16. The gradient goes the same way back.
OUTPUT_ERRORS, GRADIENT_ERRORS = 8, 40


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest norm of a difference, as a share of the norm."""
    pairs = [(x.detach().double().cpu(), y.detach().double().cpu()) for x, y in zip(found, expected, strict=True)]
    return max(((x - y).norm() / y.norm()).item() for x, y in pairs)


def outputs_and_gradient(model: nn.Module, images: Tensor, dtype: torch.dtype = torch.float32
                         ) -> tuple[tuple[Tensor, ...], Tensor]:
    """The outputs of a model, in half precision by autocast, and the gradient of all weights in one vector."""
    model.zero_grad()
    with nullcontext() if dtype == torch.float32 else torch.autocast(images.device.type, dtype):
        outputs = model(images)
    sum(output.sin().mean() for output in outputs).backward()
    return outputs, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@torch.no_grad()
@pytest.mark.parametrize(('name', 'norm_eps'), [('official', 1e-6), ('timm', 1e-6), ('mmseg', 1e-5)])
def test_the_pyramid_gives_the_reference_outputs(name: str, norm_eps: float, device: torch.device) -> None:
    model = pretrained(GOLDEN / f'{name}.pth', norm_eps=norm_eps).to(device)
    for image, expected in golden_cases(name):
        for output, wanted in zip(model(image.to(device)), expected, strict=True):
            torch.testing.assert_close(output.cpu(), wanted, atol=1e-4, rtol=0)


@torch.no_grad()
def test_the_plain_backbone_gives_the_reference_outputs(device: torch.device) -> None:
    arrays = {name: torch.from_numpy(array) for name, array in np.load(GOLDEN / 'deit_timm_io.npz').items()}
    model = pretrained(GOLDEN / 'deit_timm.pth', CPVT, img_size=64, position_encoding=dict(type='LearnablePE'),
                       out_type='raw').to(device)
    output, = model(arrays['input'].to(device))
    torch.testing.assert_close(output.cpu(), arrays['tokens'], atol=1e-4, rtol=0)


@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('kind', BACKBONES)
def test_every_encoding_in_every_precision(kind: str, name: str, device: torch.device) -> None:
    model = shaken(BACKBONES[kind](position_encoding=ENCODINGS[name]))
    images = torch.randn(2, 3, 70, 102)
    outputs, gradient = outputs_and_gradient(model.double(), images.double())
    model.float().to(device)
    for dtype, layout in itertools.product(DTYPES, (torch.contiguous_format, torch.channels_last)):
        batch = images.to(device).contiguous(memory_format=layout)
        found, found_gradient = outputs_and_gradient(model, batch, dtype)
        assert all(output.isfinite().all() for output in found) and found_gradient.isfinite().all()
        assert relative_error(found, outputs) < OUTPUT_ERRORS * torch.finfo(dtype).eps
        assert relative_error([found_gradient], [gradient]) < GRADIENT_ERRORS * torch.finfo(dtype).eps


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('kind', ['conv', 'plain'])
def test_what_is_computed_again_draws_the_same(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    images, found = torch.randn(2, 3, 64, 96, device=device), []
    for with_cp in WITH_CP:
        torch.manual_seed(0)
        model = shaken(BACKBONES[kind](with_cp=with_cp, drop_rate=0.2, drop_path_rate=0.2)).to(device).train()
        torch.manual_seed(0)
        found.append(outputs_and_gradient(model, images, dtype)[1])
    # The order of sums on a GPU is not fixed.
    assert max(relative_error([gradient], found[:1]) for gradient in found) < 8 * torch.finfo(dtype).eps
    assert found[0].any()


@torch.no_grad()
@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('kind', BACKBONES)
def test_images_of_several_sizes_get_the_features_they_have_alone(kind: str, name: str, device: torch.device) -> None:
    exact, plain = (BACKBONES[kind](position_encoding=ENCODINGS[name], padding=padding).eval().to(device)
                    for padding in ('exact', None))
    plain.load_state_dict(exact.state_dict())
    images = torch.randn(len(SIZES), 3, 96, 128, device=device)
    assert_maps_are_those_of_alone(exact(images, SIZES), images, plain, atol=1e-4)
