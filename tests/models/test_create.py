"""A backbone is made from the config and checkpoint of a whole model."""
from pathlib import Path

import torch
from mmengine.config import Config

from cpvt_mm.models.create import load_backbone
from openmmlab_tools.engine import load_config
from tests.backbones import UPERNET
from tests.helpers import build_model, refusal


def test_a_backbone_is_loaded_from_the_checkpoint_of_a_whole_model(tmp_path: Path) -> None:
    cfg, path = load_config(UPERNET), tmp_path / 'whole.pth'
    model = build_model(cfg)
    torch.save(dict(state_dict=model.state_dict()), path)
    backbone = load_backbone(cfg, path)
    assert not backbone.training
    torch.testing.assert_close(backbone.state_dict(), model.backbone.state_dict(), rtol=0, atol=0)
    torch.save(model.backbone.state_dict(), path)
    assert 'does not fit' in refusal(load_backbone, cfg, path)
    for wrong, words in (({}, 'has no model.backbone'),
                         (dict(backbone=dict(type='mmseg.ResNet', depth=50)), 'is a ResNet, but must be a CPVT or a P'),
                         (dict(backbone=dict(type='cpvt_mm.CPVT', arch='huge')), "(ValueError: 'huge' is not an")):
        assert words in refusal(load_backbone, Config(dict(model=wrong, default_scope='mmseg')))
