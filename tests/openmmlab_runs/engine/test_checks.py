"""Models, data preprocessors and classes that do not fit; test_prepare.py has keys of configs."""
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from mmengine.config import Config
from mmengine.model import BaseDataPreprocessor, ImgDataPreprocessor
from torch import nn

from cpvt_mm.models import PyramidCPVT
from openmmlab_runs.engine.checks import check_classes, check_metrics, check_model, trained_classes
from openmmlab_runs.errors import UserError
from tests.conftest import MASK_RCNN, ROOT, build_model, refusal


@pytest.mark.parametrize('in_channels, preprocessor, is_told', [
    (3, dict(mean=[1.] * 3, std=[2.] * 3), False), (1, dict(mean=[1.] * 3, std=[2.] * 3), True),
    (4, dict(mean=[1.], std=[2.]), False),  # one for all
    (4, None, False)])
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
    ('neck', dict(in_channels=MAPS), (1, 2, 3), True),
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


@pytest.mark.parametrize('meta, expected', [
    (dict(dataset_meta=dict(classes=('a', 'b'))), ['a', 'b']), (dict(dataset_meta=dict(classes='ab')), ['ab']),
    *((meta, ['a', 'b']) for meta in (dict(dataset_meta=dict(CLASSES=['a', 'b'])), dict(CLASSES=('a', 'b')))),
    (dict(dataset_meta=None), []), (dict(dataset_meta=dict(palette=[])), []), (None, [])])
def test_classes_are_found_where_libraries_write_them(meta: dict | None, expected: list[str]) -> None:
    assert trained_classes(dict(meta=meta)) == expected


def test_another_order_is_an_error() -> None:
    assert refusal(check_classes, ['a', 'b', 'c'], ['a', 'c', 'b'], 'x.pth') == (
        "checkpoint x.pth has the 3 classes of the test data in another order (class 1 is 'b' there, and 'c' here), so "
        'metrics would be of wrong classes: put metainfo.classes of test_dataloader.dataset in the order of the '
        'checkpoint.')


@pytest.mark.parametrize('tested, words', [
    ('axy', "for 3 classes, but the test data has 3 of other names: class 1 is 'b' there, and 'x' here"),
    ('ab', "for 3 classes, but the test data has 2 of other names: class 2 is 'c' there, and missing here"),
    ('abcd', "for 3 classes, but the test data has 4 of other names: class 3 is missing there, and 'd' here")])
def test_other_names_are_a_warning(tested: str, words: str, log: list[tuple[str, str]]) -> None:
    check_classes(['a', 'b', 'c'], [*tested], 'x.pth')
    [(level, message)] = log
    assert level == 'WARNING' and words in message


@pytest.mark.parametrize('trained, tested', [(['a'], ('a',)), ([], ['a']), (['a'], [])])
def test_the_same_or_unknown_classes_are_no_fault(trained: list, tested: list, log: list[tuple[str, str]]) -> None:
    check_classes(trained, tested, 'x.pth')
    assert log == []
