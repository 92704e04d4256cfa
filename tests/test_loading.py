from pathlib import Path

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import load_checkpoint
from torch import nn

from cpvt_mm import PyramidCPVT
from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from cpvt_mm.files import read_image
from cpvt_mm.loading import check_fills_backbones, load_backbone, to_input
from tests.conftest import NARROW, UPERNET, build_model


def test_a_checkpoint_is_of_the_whole_model(tmp_path: Path) -> None:
    cfg, path = load_config(UPERNET), tmp_path / 'whole.pth'
    model = build_model(cfg)
    torch.save(dict(state_dict=model.state_dict()), path)
    backbone = load_backbone(cfg, path)
    assert not backbone.training
    expected = model.backbone.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in backbone.state_dict().items())
    torch.save(expected, path)
    with pytest.raises(UserError, match='does not fit'):
        load_backbone(cfg, path)


@pytest.mark.parametrize(('model', 'message'), [
    ({}, 'has no model.backbone'),
    (dict(backbone=dict(type='mmseg.ResNet', depth=50)), 'is a ResNet, but must be a CPVT or a PyramidCPVT'),
    (dict(backbone=dict(type='cpvt_mm.CPVT', arch='huge')), "cpvt_mm.CPVT of .* cannot be built: 'huge' is not an"),
    (dict(backbone=dict(type='NoSuch')), 'the NoSuch of .* cannot be built: '),
])
def test_what_has_no_such_backbone_is_refused(model: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_backbone(Config(dict(model=model, default_scope='mmseg')))


def test_input_is_what_the_library_makes_of_the_image(tmp_path: Path) -> None:
    photograph = tmp_path / 'photograph.png'
    mmcv.imwrite(np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8), str(photograph))
    loaded, image = torch.from_numpy(mmcv.imread(photograph)).permute(2, 0, 1), read_image(photograph)
    values = dict(mean=[100, 110, 120], std=[50, 60, 70])
    for is_rgb in (True, False):
        inside = dict(values, bgr_to_rgb=is_rgb)
        with DefaultScope.overwrite_default_scope('mmseg'):
            preprocessor = MODELS.build(dict(type='SegDataPreProcessor', size=(20, 30), **inside))
        expected = preprocessor(dict(inputs=[loaded]))['inputs']
        # mmpretrain keeps its preprocessor beside the model.
        outside = dict(model={}, data_preprocessor=dict(values, to_rgb=is_rgb))
        for cfg in (dict(model=dict(data_preprocessor=inside)), outside):
            torch.testing.assert_close(to_input(image, Config(cfg)), expected)


def test_mmengine_loads_weights_of_images_into_a_whole_model_for_clips(tmp_path: Path) -> None:
    flat, deep = (nn.ModuleDict(dict(backbone=model))
                  for model in (PyramidCPVT(NARROW), PyramidCPVT(NARROW, position_encoding=dict(type='PEG', ndim=3))))
    torch.save(dict(state_dict=flat.state_dict()), tmp_path / 'model.pth')
    check_fills_backbones(deep, tmp_path / 'model.pth')
    load_checkpoint(deep, str(tmp_path / 'model.pth'), strict=True)
    name = 'backbone.stages.1.position_encoding.0.convs.0.0.weight'
    assert torch.equal(deep.state_dict()[name][:, :, 1], flat.state_dict()[name])
