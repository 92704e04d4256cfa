"""LingBot-Vision, TIPSv2 and RoPE-ViT give the tokens of timm."""
from pathlib import Path

import pytest
import timm
import torch

from cpvt_mm import CPVT, load_pretrained
from cpvt_mm.zoo.families import RELEASED
from cpvt_mm.zoo.rope_vit import AXIAL, MIXED
from tests.conftest import refusal
from tests.zoo.dino import randomized
from tests.zoo.test_renaming import narrow

ARCH = dict(embed_dims=192, depth=3, num_heads=3)
ROTARY = ['rope-vit-small-axial', 'rope-vit-small-mixed', 'rope-vit-small-axial-ape', 'rope-vit-small-mixed-ape']


@torch.no_grad()
@pytest.mark.parametrize('name', ['lingbot-small', 'lingbot-giant', 'tipsv2-base', 'tipsv2-giant', *ROTARY])
def test_a_narrow_model_gives_the_tokens_of_timm(name: str, tmp_path: Path, log: list) -> None:
    options, [file] = {**RELEASED[name].options, **RELEASED[name].parts}, RELEASED[name].files
    patch = options.get('patch_size', 16)
    theirs = randomized(timm.create_model(
        file.rpartition('/')[2].partition('.')[0], img_size=4 * patch, num_classes=0, dynamic_img_size=True,
        embed_dim=ARCH['embed_dims'], depth=ARCH['depth'], num_heads=ARCH['num_heads']), ARCH['embed_dims'])
    torch.save(theirs.state_dict(), tmp_path / 'a.pth')
    encoding = options['position_encoding']
    if name.endswith('-ape'):  # timm resamples the table in another way than the authors
        encoding = [dict(type='LearnablePE', antialias=True), encoding[1]]
    model = CPVT(ARCH, **{**options, 'position_encoding': encoding, 'img_size': 4 * patch, 'out_type': 'raw'}).eval()
    load_pretrained(model, tmp_path / 'a.pth')
    message, = [text for level, text in log if level != 'DEBUG']
    assert f'format {RELEASED[name].files[file]}, 100.0 %' in message and message.endswith('left over: nothing')
    for rows, columns in ((4, 4), (6, 10), (14, 8)):  # the first is that of the table
        image = torch.randn(1, 3, rows * patch, columns * patch)
        torch.testing.assert_close(model(image)[0], theirs.forward_features(image), atol=1e-4, rtol=0)


def test_weights_for_another_encoding_are_a_sentence(tmp_path: Path, log: list) -> None:
    axial, mixed = narrow(AXIAL), narrow(MIXED)
    torch.save(AXIAL.to_theirs(axial.state_dict()), tmp_path / 'axial.pth')
    told = refusal(load_pretrained, mixed, tmp_path / 'axial.pth')
    assert '(format timm-rope-axial) does not fit the CPVT' in told and '2 missing (position_encoding.0.freq' in told
    torch.save(MIXED.to_theirs(mixed.state_dict()), tmp_path / 'mixed.pth')
    load_pretrained(axial, tmp_path / 'mixed.pth')
    warning, = [message for level, message in log if level == 'WARNING']
    assert "was trained with the position encoding dict(type='MixedRotaryPE'), which the backbone does not" in warning
