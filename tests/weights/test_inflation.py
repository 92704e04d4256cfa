"""Weights of an image backbone fill one for clips, which then computes the same."""
from pathlib import Path

import pytest
import torch
from mmengine.runner import load_checkpoint

from cpvt_mm import PyramidCPVT
from cpvt_mm.errors import UserError
from cpvt_mm.weights.inflation import inflate
from cpvt_mm.weights.loading import check_fills_backbones, load_pretrained
from tests.conftest import NARROW

DEEP = dict(type='PEG', ndim=3)


def test_the_kernel_is_the_middle_slice() -> None:
    kernel = torch.randn(4, 1, 3, 5)
    inflated = inflate(kernel, 3)
    assert inflated.shape == (4, 1, 3, 3, 5)
    assert torch.equal(inflated[:, :, 1], kernel) and not inflated[:, :, [0, 2]].any()


@torch.no_grad()
def test_a_backbone_of_clips_starts_as_the_image_backbone(tmp_path: Path, log: list[tuple[str, str]]) -> None:
    flat, deep = PyramidCPVT(NARROW).eval(), PyramidCPVT(NARROW, position_encoding=DEEP).eval()
    torch.save(flat.state_dict(), tmp_path / 'flat.pth')
    load_pretrained(deep, tmp_path / 'flat.pth')
    frames = torch.randn(4, 3, 64, 64)
    for found, expected in zip(deep(frames, num_frames=4), flat(frames), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert any('100.0 %' in text and 'inflated over time: stages.0.position_encoding.0.convs.0.0.weight' in text
               for _, text in log)


def test_mmengine_loads_a_whole_model(tmp_path: Path) -> None:
    flat, deep = (torch.nn.ModuleDict(dict(backbone=model))
                  for model in (PyramidCPVT(NARROW), PyramidCPVT(NARROW, position_encoding=DEEP)))
    torch.save(dict(state_dict=flat.state_dict()), tmp_path / 'model.pth')
    check_fills_backbones(deep, tmp_path / 'model.pth')
    load_checkpoint(deep, str(tmp_path / 'model.pth'), strict=True)
    name = 'backbone.stages.1.position_encoding.0.convs.0.0.weight'
    assert torch.equal(deep.state_dict()[name][:, :, 1], flat.state_dict()[name])


def test_weights_of_clips_do_not_fill_an_image_backbone(tmp_path: Path) -> None:
    torch.save(PyramidCPVT(NARROW, position_encoding=DEEP).state_dict(), tmp_path / 'deep.pth')
    with pytest.raises(UserError, match=r'\(16, 1, 3, 3, 3\) instead of \(16, 1, 3, 3\)'):
        load_pretrained(PyramidCPVT(NARROW), tmp_path / 'deep.pth')
