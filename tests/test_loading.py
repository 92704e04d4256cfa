from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from cpvt_mm.loading import load_backbone
from tests.conftest import UPERNET


def test_a_checkpoint_is_of_the_whole_model(tmp_path: Path) -> None:
    cfg, path = load_config(UPERNET), tmp_path / 'whole.pth'
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
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
