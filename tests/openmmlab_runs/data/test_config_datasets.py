"""Datasets of a config: how they are found and built, which faults stop training, and which heads do not fit."""
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmdet.datasets import CocoDataset, CocoPanopticDataset, LVISV1Dataset
from mmengine.config import Config
from mmengine.dataset import BaseDataset, ConcatDataset, RepeatDataset
from mmengine.registry import DefaultScope
from mmseg.datasets import ADE20KDataset, BaseSegDataset
from PIL import Image

from lab.datasets.toy_shapes import CLASSES
from openmmlab_runs.data import config_datasets
from openmmlab_runs.data.config_datasets import plan_checks, task_of
from openmmlab_runs.data.datasets import layout_of, unwrap, unwrap_built
from openmmlab_runs.data.file_checks import check_files
from openmmlab_runs.data.findings import Kind, UnusableFile
from tests.conftest import refusal
from tests.tools.conftest import change_annotations

BOXES = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
MASKS = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=True)]
NotUnique = type('NotUnique', (CocoDataset,), dict(ANN_ID_UNIQUE=False))
OwnReader = type('OwnReader', (CocoDataset,), dict(
    parse_data_info=lambda self, raw_data_info: CocoDataset.parse_data_info(self, raw_data_info)))


class Own(CocoDataset):
    """Takes other arguments than mmengine's datasets do."""

    def __init__(self, ann_file: str) -> None:
        super().__init__(ann_file=ann_file, data_prefix=dict(img=''))


def instances(data: Path, **more: Any) -> dict[str, Any]:
    return {**dict(type='CocoDataset', data_root=str(data), ann_file='instances_training.json',
                   data_prefix=dict(img='images/training/'), metainfo=dict(classes=CLASSES), pipeline=BOXES), **more}


def label_maps(data: Path, split: str, classes: tuple[str, ...] = ('background', *CLASSES)) -> dict[str, Any]:
    return dict(type='mmseg.BaseSegDataset', data_root=str(data), metainfo=dict(classes=classes), data_prefix=dict(
        img_path=f'images/{split}', seg_map_path=f'annotations/{split}'))


def config(dataset: dict[str, Any], model: dict[str, Any] = {}, **more: Any) -> Config:
    return Config(dict(default_scope='mmdet', model=model, train_dataloader=dict(dataset=dataset), **more))


def check_before_training(dataset: dict[str, Any], model: dict[str, Any] = {}) -> None:
    config_datasets.check_before_training(config(dataset, model), ['train'])


def of_the_checks(log: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without mmengine's messages, of the registry and of classes in one word."""
    return [(level, message) for level, message in log if level != 'DEBUG' and 'is not a meta file' not in message]


def changed(index: int, **values: object) -> Callable[[dict], None]:
    return lambda coco: coco['annotations'][index].update(values)


FLAT, DUPLICATE = changed(0, segmentation=[1, 2, 9, 2, 9, 9]), changed(1, id=1)


@pytest.mark.parametrize('more, change, words', [
    ({}, FLAT, 'has a segmentation that is not a list of polygons'),
    ({}, lambda coco: coco['annotations'][0]['segmentation'].update(size=[1, 2]), 'has a mask of size [1, 2]'),
    (dict(type=NotUnique), DUPLICATE, 'has id 1 2 times in annotations')])
def test_what_mmdet_copes_with_is_a_warning(data: Path, log: list, more: dict, change: Callable, words: str) -> None:
    change_annotations(data / 'instances_training.json', change)
    check_before_training(instances(data, **more))
    (level, message), = of_the_checks(log)
    assert level == 'WARNING' and message.startswith(f'{data}/instances_training.json {words}')


@pytest.mark.parametrize('more, change, words', [
    (dict(pipeline=MASKS), FLAT, 'has a segmentation that is not a list of polygons'),
    ({}, DUPLICATE, 'has id 1 2 times in annotations'),
    ({}, changed(2, category_id=99), 'has category_id 99 in annotation 3, but no such'),
    ({}, lambda coco: [one.update(iscrowd=1) for one in coco['annotations']], 'has only boxes that mmdet ignores (21'),
    (dict(pipeline=MASKS), lambda coco: coco['annotations'][0].pop('segmentation'), 'has no segmentation in '),
    ({}, lambda coco: [one.update(category_id='x') for one in coco['annotations']], 'has no annotation of a class'),
    ({}, lambda coco: coco.update(annotations=[]), 'has no annotations, and filter_cfg.filter_empty_gt leaves')])
def test_what_mmdet_fails_on_is_an_error(data: Path, more: dict, change: Callable, words: str) -> None:
    change_annotations(data / 'instances_training.json', change)
    dataset = instances(data, **{'filter_cfg': dict(filter_empty_gt=True), **more})
    assert refusal(check_before_training, dataset).startswith(f'{data}/instances_training.json {words}')


@pytest.mark.parametrize('change, words', [
    (lambda categories: categories.pop(0), 'has no category for 1 of 5 classes (sun), so labels would not match'),
    (lambda categories: categories.reverse(), "lists 'square' where the classes have 'sun', and mmdet numbers labels")])
def test_classes_that_do_not_match_name_the_key_first(data: Path, change: Callable, words: str) -> None:
    change_annotations(data / 'instances_training.json', lambda coco: change(coco['categories']))
    assert refusal(check_before_training, instances(data)).startswith(
        'train_dataloader.dataset.metainfo.classes does not match the annotations, '
        f'{data}/instances_training.json {words}')


@pytest.mark.parametrize('pipeline, evaluator', [
    (MASKS, {}), (BOXES, dict(type='CocoMetric', metric='segm')),
    (BOXES, [dict(type='mmdet.CocoMetric', metric=['bbox', 'segm'])])])
def test_a_config_for_masks_is_what_boxes_alone_tell_to_change(data: Path, pipeline: list, evaluator: Any) -> None:
    change_annotations(data / 'instances_training.json', lambda coco: [
        one.pop('segmentation') for one in coco['annotations']])
    cfg = Config(dict(default_scope='mmdet', val_dataloader=dict(dataset=instances(data, pipeline=pipeline)),
                      val_evaluator=evaluator))
    assert refusal(config_datasets.check_before_training, cfg, ['val']) == (
        f'{data}/instances_training.json has boxes only, no segmentation in its 21 annotations, but the config reads '
        'masks: take a config for boxes, such as one of tools/misc/new_config.py, or set with_mask=False in the '
        "pipelines, model.roi_head.mask_head=None, and metric='bbox' in the evaluators (tools/misc/check_dataset.py "
        'finds all).')


@pytest.mark.parametrize('root', ['{cwd}/data', 'data'])
def test_a_missing_file_is_told_by_its_whole_path_with_the_keys_to_correct(
        data: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    dataset = instances(Path(root.format(cwd=data.parent)), ann_file='no.json')
    assert refusal(check_before_training, dict(type='RepeatDataset', times=2, dataset=dataset)) == (
        f'{data}/no.json does not exist: put the file there, or correct train_dataloader.dataset.dataset.data_root, '
        '.ann_file or .data_prefix.')


@pytest.mark.parametrize('number', [2, 80])
def test_a_head_has_the_number_of_classes(number: int, toy_shapes: Path) -> None:
    model = dict(roi_head=dict(bbox_head=[dict(num_classes=number), dict(num_classes=number)]))
    assert refusal(check_before_training, instances(toy_shapes), model) == (
        f'model.roi_head.bbox_head.0.num_classes is {number}, but the dataset has 5 classes (sun, ball, kite, boat, '
        'square) (and 1 more of this kind): correct it, or train_dataloader.dataset.metainfo.classes '
        '(tools/misc/check_dataset.py finds all).')


@pytest.mark.parametrize('classes, words', [
    ('sun', 'which are ignored: it is not a class'),  # one name is a list of one
    ((*CLASSES, 'moon'), 'has no category for 1 of 6 classes (moon)')])
def test_more_and_fewer_classes_are_noted(toy_shapes: Path, log: list, classes: tuple | str, words: str) -> None:
    check_before_training(instances(toy_shapes, metainfo=dict(classes=classes)))
    (level, message), = of_the_checks(log)
    assert level == 'INFO' and words in message


@pytest.mark.parametrize('cls, reason', [(Own, 'TypeError: '), ('NoDataset', "KeyError: 'NoDataset is not in the ")])
def test_a_dataset_that_cannot_be_built_is_not_checked(toy_shapes: Path, log: list, cls: Any, reason: str) -> None:
    check_before_training(dict(type=cls, ann_file=str(toy_shapes / 'instances_training.json')))
    level, message = of_the_checks(log)[-1]
    assert level == 'WARNING' and f'is not checked ({reason}' in message


def test_label_maps_may_be_of_unknown_classes(toy_shapes: Path, log: list) -> None:
    check_before_training({**label_maps(toy_shapes, 'training'), 'type': BaseSegDataset, 'metainfo': {}})
    assert of_the_checks(log) == []


@pytest.mark.parametrize('wrapper', ['RepeatDataset', 'ClassBalancedDataset', 'ConcatDataset'])
def test_what_wraps_a_dataset_passes_if_it_does(wrapper: str, data: Path, log: list) -> None:
    one = instances(data, filter_cfg=dict(filter_empty_gt=True))
    arguments = dict(RepeatDataset=dict(times=2, dataset=one), ConcatDataset=dict(datasets=[one, one]),
                     ClassBalancedDataset=dict(oversample_thr=0.1, dataset=one))
    dataset = dict(type=wrapper, **arguments[wrapper])
    check_before_training(dataset)
    assert of_the_checks(log) == []
    change_annotations(data / 'instances_training.json', lambda coco: coco.update(annotations=[]))
    assert 'instances_training.json has no annotations' in refusal(check_before_training, dataset)


def test_a_repeated_dataset_is_checked_once(toy_shapes: Path) -> None:
    one, other = instances(toy_shapes), instances(toy_shapes, pipeline=[*BOXES, dict(type='RandomFlip')])
    plan, = plan_checks(config(dict(type='ConcatDataset', datasets=[
        one, dict(type='RepeatDataset', times=2, dataset=one), other]), val_dataloader=dict(dataset=one)))
    assert (plan.splits, plan.name) == (['train', 'val'], 'train_dataloader.dataset.datasets.0')
    assert len(plan.samples) == 8


def test_the_default_scope_is_that_of_the_config_only_during_the_check(toy_shapes: Path) -> None:
    DefaultScope.get_instance('of the caller', scope_name='mmengine')
    segmentation = {**label_maps(toy_shapes, 'training'), 'type': 'BaseSegDataset'}
    for scope, dataset in (('mmdet', instances(toy_shapes)), ('mmseg', segmentation)):
        plan, = plan_checks(Config(dict(default_scope=scope, train_dataloader=dict(dataset=dataset))))
        assert plan.findings == [] and len(plan.samples) == 8
        assert DefaultScope.get_current_instance().instance_name == 'of the caller'


HEAD = dict(num_classes=5)


@pytest.mark.parametrize('more, model, expected', [
    # HTC
    ({}, dict(rpn_head=dict(num_classes=1), roi_head=dict(bbox_head=[HEAD] * 3, semantic_head=dict(num_classes=183))),
     []),
    # Panoptic FPN, with annotations in another layout
    (dict(type=OwnReader), dict(roi_head=dict(bbox_head=dict(num_classes=80)), semantic_head=dict(num_classes=53)),
     [(Kind.NOT_CHECKED, 'instances_training.json')]),
    # Grounding DINO
    (dict(return_classes=True), dict(bbox_head=dict(num_classes=256)), []),
    ({}, dict(roi_head=dict(bbox_head=[HEAD, dict(num_classes=3)])),
     [(Kind.TOO_FEW_CLASSES, 'model.roi_head.bbox_head.1.num_classes')])])
def test_heads_of_detectors_that_do_not_fit(more: dict, model: dict, expected: list, toy_shapes: Path) -> None:
    plan, = plan_checks(config(instances(toy_shapes, **more), model))
    assert [(finding.kind, finding.file.removeprefix(f'{toy_shapes}/')) for finding in plan.findings] == expected


@pytest.mark.parametrize('model, expected', [
    (dict(decode_head=dict(num_classes=6), auxiliary_head=[dict(num_classes=6), dict(num_classes=2, type='STDCHead')]),
     []),
    (dict(auxiliary_head=dict(num_classes=4)), [(Kind.TOO_FEW_CLASSES, 'model.auxiliary_head.num_classes')]),
    (dict(decode_head=[dict(num_classes=6), dict(num_classes=4)]),
     [(Kind.TOO_FEW_CLASSES, 'model.decode_head.1.num_classes')])])
def test_heads_of_segmentors_that_do_not_fit_are_named(toy_shapes: Path, model: dict, expected: list) -> None:
    cfg = config(label_maps(toy_shapes, 'training'), model)
    plan, = plan_checks(cfg)
    assert [(finding.kind, finding.file) for finding in plan.findings] == expected
    labels = [finding for checked in check_files(cfg, plan) for finding in checked.findings]
    assert {finding.kind for finding in labels} == ({Kind.LABEL} if expected else set())


@pytest.mark.parametrize('decode, auxiliary, metric, words', [
    ({}, [], {}, 'has 5, but'), (dict(ignore_index=5), dict(ignore_index=5), dict(ignore_index=5), 'has 255, but'),
    (dict(ignore_index=5), [dict()], [dict(ignore_index=5), dict()], 'has 5, 255, but')])
def test_labels_are_ignored_if_all_do(decode: Any, auxiliary: Any, metric: Any, words: str, data: Path) -> None:
    """Label maps have 5 classes, and the values 5 and 255."""
    for split in ('training', 'validation'):
        path = data / f'annotations/{split}/000000.png'
        values = np.asarray(Image.open(path)) % 5
        values[0, :2] = 5, 255
        Image.fromarray(values).save(path)
    cfg = config(label_maps(data, 'training', CLASSES), dict(decode_head=decode, auxiliary_head=auxiliary),
                 val_evaluator=metric, val_dataloader=dict(dataset=label_maps(data, 'validation', CLASSES)))
    for plan in plan_checks(cfg):
        finding, = next(check_files(cfg, plan)).findings
        assert finding.kind is Kind.LABEL and finding.detail.startswith(words)


@pytest.mark.parametrize('cls, layout', [
    (CocoDataset, 'coco'), (NotUnique, 'coco'), (ADE20KDataset, 'label maps'),
    # They read files of their own.
    (OwnReader, 'images'), (LVISV1Dataset, 'images'), (CocoPanopticDataset, 'images'), (BaseDataset, 'images')])
def test_the_layout_is_that_of_the_reader(cls: type, layout: str) -> None:
    assert layout_of(cls) == layout


def test_wrapped_datasets_are_found() -> None:
    one, other = dict(type='A'), dict(type='B')
    wrapped = dict(type='ConcatDataset', datasets=[one, dict(type='RepeatDataset', times=2, dataset=other)])
    assert list(unwrap(wrapped, 'a')) == [('a.datasets.0', one), ('a.datasets.1.dataset', other)]
    # When they are built, too.
    one, other = BaseDataset(lazy_init=True), BaseDataset(lazy_init=True)
    assert list(unwrap_built(ConcatDataset([one, other], lazy_init=True))) == [one, other]
    assert list(unwrap_built(RepeatDataset(one, times=2, lazy_init=True))) == [one]


@pytest.mark.parametrize('own', [{}, dict(datasets=['a', 'b']), dict(datasets=None), dict(datasets='ab'),
                                 dict(dataset='a'), dict(dataset=dict(a=1)), dict(datasets=dict(a=1))])
def test_arguments_of_a_datasets_own_wrap_nothing(own: dict) -> None:
    cfg = dict(type='A', **own)
    assert list(unwrap(cfg, 'a')) == [('a', cfg)]
    dataset = BaseDataset(lazy_init=True)
    vars(dataset).update(own)
    assert list(unwrap_built(dataset)) == [dataset]


def test_the_error_of_a_file_comes_back_from_another_process() -> None:
    error = pickle.loads(pickle.dumps(UnusableFile('a.json', 'is empty.')))
    assert (str(error), error.file, error.detail) == ('a.json is empty.', 'a.json', 'is empty.')


@pytest.mark.parametrize('evaluator, task', [
    (dict(type='CocoMetric', ann_file='segmented/val.json', metric='bbox'), 'boxes'),
    (dict(type='VOCMetric', metric='mAP'), 'boxes'),
    (dict(type='LVISMetric', metric=['bbox', 'segm']), 'instances'),
    ([dict(type='DumpDetResults'), dict(type='CocoMetric', metric='segm')], 'instances')])
def test_the_metric_tells_whether_a_detector_is_for_masks(evaluator: Any, task: str) -> None:
    assert task_of(Config(dict(default_scope='mmdet', val_evaluator=evaluator))) == task


def test_images_of_training_in_validation_are_counted(data: Path) -> None:
    train = instances(data)
    cfg = config(train, val_dataloader=dict(dataset=instances(
        data, ann_file='both.json', data_prefix=dict(img='images/training/../'), test_mode=True)))
    coco = json.loads((data / 'instances_validation.json').read_text())
    own = len(coco['images'])
    for image in coco['images']:
        image['file_name'] = f'validation/{image["file_name"]}'
    coco['images'] += [dict(id=100 + index, file_name=f'./training/{index:06}.jpg', width=9, height=9)
                       for index in (99, 2, 3)]
    (data / 'both.json').write_text(json.dumps(coco))
    found = [(plan.splits, finding.detail) for plan in plan_checks(cfg) for finding in plan.findings
             if finding.kind is Kind.SHARED]
    assert found == [(['val'], f'has 2 of its {own + 3} images in training, too, such as {data}/images/training/../'
                               './training/000002.jpg')]


def test_what_mmdet_cannot_read_stops_training(data: Path) -> None:
    file = data / 'instances_training.json'
    change_annotations(file, lambda coco: [image.update(width=str(image['width'])) for image in coco['images']])
    message = refusal(check_before_training, instances(data))
    assert message.startswith(f"{file} has width='") and message.endswith(
        ' more): let tools/misc/new_config.py write a corrected file (tools/misc/check_dataset.py finds all).')
