"""Models and data preprocessors that do not fit together; tests/engine/test_prepare.py has keys of configs."""
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from mmengine.config import Config
from mmengine.model import BaseDataPreprocessor, ImgDataPreprocessor
from torch import nn

from cpvt_mm.engine.checks import check_metrics, check_model
from cpvt_mm.errors import UserError
from cpvt_mm.models import PyramidCPVT
from tests.conftest import MASK_RCNN, ROOT, build_model, refusal


@pytest.mark.parametrize('in_channels, preprocessor, is_told', [
    (3, dict(mean=[1.] * 3, std=[2.] * 3), False), (1, dict(mean=[1.] * 3, std=[2.] * 3), True),
    (4, dict(mean=[1.] * 3, std=[2.] * 3), True), (1, dict(mean=[1.], std=[2.]), False),
    (4, dict(mean=[1.], std=[2.]), False),  # one for all
    (4, dict(), False), (4, None, False)])
def test_a_mean_is_for_each_channel_or_for_all(in_channels: int, preprocessor: dict | None, is_told: bool) -> None:
    detector = nn.Module()
    detector.backbone = PyramidCPVT('nano', in_channels=in_channels, out_indices=(0,))
    detector.data_preprocessor = BaseDataPreprocessor() if preprocessor is None else ImgDataPreprocessor(**preprocessor)
    message = rf'mean has 3 values, but backbone.in_channels is {in_channels}: give'
    with pytest.raises(UserError, match=message) if is_told else nullcontext():
        check_model(nn.ModuleDict(dict(student=detector)))
    check_model(nn.Linear(1, 1))  # has no backbone


MAPS = [32, 64, 128, 192]


@pytest.mark.parametrize('name, reader, out_indices, is_told', [
    ('neck', dict(in_channels=MAPS), (0, 1, 2, 3), False), ('neck', dict(in_channels=MAPS[::-1]), (0, 1, 2, 3), False),
    ('neck', dict(in_channels=192), (0, 1, 2, 3), False), ('neck', dict(), (0, 1, 2, 3), False),
    ('neck', dict(in_channels=MAPS), (1, 2, 3), True), ('neck', dict(in_channels=[64, 128]), (0, 1, 2, 3), True),
    ('decode_head', dict(in_channels=MAPS, in_index=[0, 1, 2, 3]), (0, 1, 2, 3), False),
    ('decode_head', dict(in_channels=MAPS[1:3], in_index=[1, 2]), (0, 1, 2, 3), False),
    ('decode_head', dict(in_channels=MAPS, in_index=[0, 1, 2, 3]), (0, 1, 2), True),
    ('auxiliary_head', dict(in_channels=[320], in_index=[2]), (0, 1, 2, 3), True)])
def test_a_neck_or_head_takes_the_maps_of_the_backbone(name: str, reader: dict, out_indices: tuple, is_told: bool
                                                       ) -> None:
    model = nn.Module()
    model.backbone = PyramidCPVT('nano', out_indices=out_indices)
    setattr(model, name, SimpleNamespace(**reader))
    if not is_told:
        check_model(model)
        return
    given = [MAPS[i] for i in out_indices]
    assert refusal(check_model, model) == (
        f'model.{name}.in_channels is {reader["in_channels"]}, but the backbone returns {len(given)} maps of {given} '
        f'channels: make them equal, by model.{name} or by model.backbone.')


@pytest.mark.parametrize('metric, is_told', [
    ('bbox', False), (['bbox', 'proposal'], False), ('segm', True), (['bbox', 'segm'], True)])
def test_a_metric_for_masks_needs_a_head_for_them(metric: object, is_told: bool) -> None:
    cfg = Config.fromfile(ROOT / 'configs/boxes/faster-rcnn_pyramid-cpvt-nano_fpn_boxes.py')
    cfg.val_evaluator.metric = metric
    model = build_model(cfg, 'meta')
    check_metrics(model, cfg, ['train'])
    if is_told:
        assert refusal(check_metrics, model, cfg, ['train', 'val']) == (
            "val_evaluator has metric='segm', but the model has no head for masks: set "
            "val_evaluator.metric='bbox', or take a model with masks, such as Mask R-CNN.")
    else:
        check_metrics(model, cfg, ['val'])
    check_metrics(build_model(Config.fromfile(MASK_RCNN), 'meta'), cfg, ['val'])
