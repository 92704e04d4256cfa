"""Weights of Twins-PCPVT give the outputs of its authors, timm, mmseg and mmpretrain."""
from pathlib import Path

import pytest
import torch
from torch import nn

from cpvt_mm import PyramidCPVT
from cpvt_mm.zoo import twins
from cpvt_mm.zoo.renaming import Format
from openmmlab_runs.libraries import require
from tests.conftest import GOLDEN, NARROW, golden_cases, pretrained
from tests.zoo.test_renaming import shaken


@torch.no_grad()
@pytest.mark.parametrize('name, norm_eps', [('official', 1e-6), ('timm', 1e-6), ('mmseg', 1e-5)])
def test_files_of_other_libraries_give_their_outputs(name: str, norm_eps: float) -> None:
    model = pretrained(GOLDEN / f'{name}.pth', norm_eps=norm_eps)
    for image, expected in golden_cases(name):
        torch.testing.assert_close(list(model(image)), expected, atol=1e-4, rtol=0)


def their_pcpvt(library: str, **kwargs: object) -> nn.Module:
    lists = {name: list(values) for name, values in NARROW.items()}
    lists.update(patch_sizes=[4, 2, 2, 2], strides=[4, 2, 2, 2])
    if library == 'mmpretrain':
        require('mmpretrain')
        from mmpretrain.models.backbones import PCPVT
        # Its shipped configs set this eps.
        return PCPVT(lists, out_indices=(0, 1, 2, 3), qkv_bias=True, norm_cfg=dict(type='LN', eps=1e-6), **kwargs)
    from mmseg.models.backbones import PCPVT
    return PCPVT(**lists, qkv_bias=True, **kwargs)


@torch.no_grad()
@pytest.mark.parametrize('fmt', [twins.MMSEG, twins.MMPRETRAIN], ids=str)
def test_is_what_the_classes_of_openmmlab_are(fmt: Format, tmp_path: Path) -> None:
    theirs, image = shaken(their_pcpvt(str(fmt))), torch.randn(1, 3, 64, 96)
    torch.save(theirs.state_dict(), tmp_path / 'a.pth')
    model = pretrained(tmp_path / 'a.pth', norm_eps=fmt.norm_eps)
    torch.testing.assert_close(model(image), theirs(image), atol=1e-4, rtol=0)
    # In the other direction.
    ours = shaken(PyramidCPVT(NARROW, norm_eps=fmt.norm_eps))
    theirs.load_state_dict(fmt.to_theirs(ours.state_dict()))
    torch.testing.assert_close(ours(image), theirs(image), atol=1e-4, rtol=0)


@torch.no_grad()
def test_the_norm_after_the_last_stage_is_out_norm(tmp_path: Path) -> None:
    theirs = shaken(their_pcpvt('mmpretrain', norm_after_stage=[False, False, False, True]))
    torch.save(theirs.state_dict(), tmp_path / 'a.pth')
    model = pretrained(tmp_path / 'a.pth', out_indices=(3,), out_norm=True)
    image = torch.randn(1, 3, 64, 96)
    torch.testing.assert_close(model(image)[0], theirs(image)[3], atol=1e-4, rtol=0)
    timm = torch.load(GOLDEN / 'timm.pth', weights_only=True)
    model = pretrained(GOLDEN / 'timm.pth', out_indices=(3,), out_norm=True)
    assert torch.equal(model.out_norms['3'].weight, timm['norm.weight'])
