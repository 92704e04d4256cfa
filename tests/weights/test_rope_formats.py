"""LingBot-Vision, TIPSv2 and RoPE-ViT give the tokens of timm; and how weights of RoPE-ViT are told and translated."""
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from cpvt_mm import CPVT, load_pretrained
from cpvt_mm.models.create import BACKBONES
from cpvt_mm.weights.formats import detect_format
from cpvt_mm.weights.released import RELEASED
from cpvt_mm.weights.rope_formats import AXIAL, MIXED, ROPE_FORMATS, RopeVitFormat
from tests.conftest import refusal
from tests.weights.dino import randomized

ARCH = dict(embed_dims=192, depth=3, num_heads=3)
ROTARY = ['rope-vit-small-axial', 'rope-vit-small-mixed', 'rope-vit-small-axial-ape', 'rope-vit-small-mixed-ape']


def narrow(encoding: Any, **kwargs: Any) -> CPVT:
    return CPVT(ARCH, **{'img_size': 64, 'position_encoding': encoding, 'layer_scale': 1e-5, **kwargs})


def of_timm(name: str, patch: int = 16) -> nn.Module:
    model = next(iter(RELEASED[name].files)).rpartition('/')[2]
    sizes = dict(embed_dim=ARCH['embed_dims'], depth=ARCH['depth'], num_heads=ARCH['num_heads'])
    return randomized(timm.create_model(model.partition('.')[0], img_size=4 * patch, num_classes=0,
                                        dynamic_img_size=True, **sizes), ARCH['embed_dims'])


@torch.no_grad()
@pytest.mark.parametrize('name', ['lingbot-small', 'lingbot-giant', 'tipsv2-base', 'tipsv2-giant', *ROTARY])
def test_a_narrow_model_gives_the_tokens_of_timm(name: str, tmp_path: Path, log: list) -> None:
    _, _, options = BACKBONES[name]
    patch = options.get('patch_size', 16)
    theirs = of_timm(name, patch)
    torch.save(theirs.state_dict(), tmp_path / 'a.pth')
    encoding = options['position_encoding']
    if name.endswith('-ape'):  # timm resamples the table in another way than the authors
        encoding = [dict(type='LearnablePE', antialias=True), encoding[1]]
    model = CPVT(ARCH, **{**options, 'position_encoding': encoding, 'img_size': 4 * patch, 'out_type': 'raw'}).eval()
    load_pretrained(model, tmp_path / 'a.pth')
    message, = [text for level, text in log if level != 'DEBUG']
    assert f'format {next(iter(RELEASED[name].files.values()))}, 100.0 %' in message
    assert message.endswith('left over: nothing')
    for rows, columns in ((4, 4), (6, 10), (14, 8)):  # the first is that of the table
        image = torch.randn(1, 3, rows * patch, columns * patch)
        torch.testing.assert_close(model(image)[0], theirs.forward_features(image), atol=1e-4, rtol=0)


def test_frequencies_under_the_name_of_the_authors_are_the_same() -> None:
    theirs = of_timm('rope-vit-small-mixed').state_dict()
    expected, frequencies = MIXED.to_ours(theirs), theirs.pop('rope.freqs')
    found = MIXED.to_ours({**theirs, 'freqs': frequencies.flatten(2), 'freqs_t_x': torch.arange(16.)})
    assert found.keys() == {*expected, 'freqs_t_x'}
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def encodings(fmt: RopeVitFormat, table: bool) -> list[dict[str, str]]:
    return [*([dict(type='LearnablePE')] if table else []), dict(fmt.encoding)]


@pytest.mark.parametrize('table', [False, True])
@pytest.mark.parametrize('fmt', ROPE_FORMATS, ids=str)
def test_there_and_back_is_bit_exact(fmt: RopeVitFormat, table: bool) -> None:
    ours = randomized(narrow(encodings(fmt, table)), 192).state_dict()
    theirs = fmt.to_theirs(ours)
    assert detect_format(theirs, 'a.pth').format is fmt
    back = fmt.to_ours(theirs)
    assert back.keys() == ours.keys() and all(torch.equal(back[name], tensor) for name, tensor in ours.items())


@pytest.mark.parametrize('fmt', ROPE_FORMATS, ids=str)
def test_what_the_format_lacks_has_no_name_there(fmt: RopeVitFormat) -> None:
    for encoding in ([*encodings(fmt, False), dict(type='PEG')], [*encodings(fmt, False), dict(type='LearnablePE')],
                     [dict(type='LearnablePE', grid=(4, 6)), dict(fmt.encoding)]):
        told = refusal(fmt.to_theirs, narrow(encoding).state_dict())
        assert f"only a dict(type='{fmt.encoding['type']}'" in told


def test_weights_for_another_encoding_are_a_sentence(tmp_path: Path, log: list) -> None:
    axial, mixed = narrow(dict(type='RotaryPE')), narrow(dict(type='MixedRotaryPE'))
    torch.save(AXIAL.to_theirs(axial.state_dict()), tmp_path / 'axial.pth')
    told = refusal(load_pretrained, mixed, tmp_path / 'axial.pth')
    assert '(format timm-rope-axial) does not fit the CPVT' in told and '3 missing (position_encoding.0.freq' in told
    weights = MIXED.to_theirs(mixed.state_dict())
    torch.save(weights, tmp_path / 'mixed.pth')
    load_pretrained(axial, tmp_path / 'mixed.pth')
    warning, = [message for level, message in log if level == 'WARNING']
    assert "was trained with the position encoding dict(type='MixedRotaryPE'), which the backbone does not" in warning
    weights['rope.freqs'] = torch.ones(2, 3, 6, 16)
    assert "the checkpoint's heads have 32 channels, but must have 64" in refusal(MIXED.to_ours, weights)
