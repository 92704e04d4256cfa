"""Faults that stop training, faults that are only logged, and datasets that are not checked."""
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mmdet.datasets import CocoDataset
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmseg.datasets import BaseSegDataset

from cpvt_mm.data.checking import before_training, datasets
from cpvt_mm.data.toy_shapes import CLASSES
from cpvt_mm.errors import UserError

BOXES = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
MASKS = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=True)]


class NotUnique(CocoDataset):
    ANN_ID_UNIQUE = False


class Own(CocoDataset):
    """Takes other arguments than mmengine's datasets do."""

    def __init__(self, ann_file: str) -> None:
        super().__init__(ann_file=ann_file, data_prefix=dict(img=''))


@pytest.fixture
def data(toy_shapes: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    init_default_scope('mmdet')
    return shutil.copytree(toy_shapes, tmp_path / 'data')


def config(data: Path, **more: Any) -> dict[str, Any]:
    return {**dict(type=CocoDataset, data_root=str(data), ann_file='instances_training.json',
                   data_prefix=dict(img='images/training/'), metainfo=dict(classes=CLASSES), pipeline=BOXES), **more}


def check_before_training(dataset: dict[str, Any], model: dict[str, Any] = {}) -> None:
    before_training.check_before_training(
        Config(dict(default_scope='mmdet', model=model, train_dataloader=dict(dataset=dataset))), ['train'])


def change_annotations(data: Path, change: Callable[[dict], object]) -> None:
    file = data / 'instances_training.json'
    coco = json.loads(file.read_text())
    change(coco)
    file.write_text(json.dumps(coco))


def of_the_checks(log: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without mmengine's messages, of the registry and of classes in one word."""
    return [(level, message) for level, message in log if level != 'DEBUG' and 'is not a meta file' not in message]


def flat(coco: dict) -> None:
    coco['annotations'][0].update(segmentation=[1, 2, 9, 2, 9, 9])


def duplicate(coco: dict) -> None:
    coco['annotations'][1].update(id=coco['annotations'][0]['id'])


@pytest.mark.parametrize('more, change, words', [
    ({}, lambda coco: coco['annotations'][2].update(category_id=99), 'has category_id 99 in annotation 3, but no such'),
    ({}, lambda coco: coco['categories'].reverse(), "lists 'square' where the classes have 'sun'"),
    ({}, flat, 'has a segmentation that is not a list of polygons'),
    ({}, lambda coco: coco['annotations'][0]['segmentation'].update(size=[1, 2]), 'has a mask of size [1, 2]'),
    (dict(type=NotUnique), duplicate, 'has id 1 2 times in annotations'),
])
def test_what_mmdet_copes_with_is_a_warning(data: Path, log: list, more: dict, change: Callable, words: str) -> None:
    change_annotations(data, change)
    check_before_training(config(data, **more))
    (level, message), = of_the_checks(log)
    assert level == 'WARNING' and message.startswith(f'{data}/instances_training.json {words}')


@pytest.mark.parametrize('more, change, words', [
    (dict(pipeline=MASKS), flat, 'has a segmentation that is not a list of polygons'),
    ({}, duplicate, 'has id 1 2 times in annotations'),
    (dict(pipeline=MASKS), lambda coco: coco['annotations'][0].pop('segmentation'), 'has no segmentation in '),
    ({}, lambda coco: [one.update(category_id='x') for one in coco['annotations']], 'has no annotation of a class'),
    ({}, lambda coco: coco.update(annotations=[]), 'has no annotations, and filter_cfg.filter_empty_gt leaves'),
])
def test_what_mmdet_fails_on_is_an_error(data: Path, more: dict, change: Callable, words: str) -> None:
    change_annotations(data, change)
    with pytest.raises(UserError) as error:
        check_before_training(config(data, **{'filter_cfg': dict(filter_empty_gt=True), **more}))
    assert str(error.value).startswith(f'{data}/instances_training.json {words}')


def test_classes_that_do_not_match_name_the_key_first(data: Path) -> None:
    change_annotations(data, lambda coco: coco['categories'].pop(0))
    with pytest.raises(UserError) as error:
        check_before_training(config(data))
    assert str(error.value).startswith(
        'train_dataloader.dataset.metainfo.classes does not match the annotations, '
        f'{data}/instances_training.json has no category for 1 of 5 classes (sun)')


def test_a_missing_file_names_the_keys_to_correct(data: Path) -> None:
    with pytest.raises(UserError) as error:
        check_before_training(dict(type='RepeatDataset', times=2, dataset=config(data, ann_file='no.json')))
    assert str(error.value) == (
        f'{data}/no.json does not exist: put the file there, or correct train_dataloader.dataset.dataset.data_root, '
        '.ann_file or .data_prefix.')


def test_a_head_of_more_classes_is_a_warning_and_of_fewer_an_error(data: Path, log: list) -> None:
    check_before_training(config(data), dict(roi_head=dict(bbox_head=dict(num_classes=80))))
    (level, message), = of_the_checks(log)
    assert level == 'WARNING'
    assert message.startswith('model.roi_head.bbox_head.num_classes is 80, but the dataset has 5 classes')
    with pytest.raises(UserError, match=r'model\.roi_head\.mask_head\.num_classes is 2, but the dataset has 5 classes'):
        check_before_training(config(data), dict(roi_head=dict(mask_head=dict(num_classes=2))))


@pytest.mark.parametrize('classes', [CLASSES[:2], 'sun'])
def test_a_part_of_the_classes_is_no_fault(data: Path, log: list, classes: tuple[str, ...] | str) -> None:
    check_before_training(config(data, metainfo=dict(classes=classes)))
    (level, message), = of_the_checks(log)
    assert level == 'INFO' and 'which are ignored: it is not a class' in message


def test_a_file_without_the_last_class_is_no_fault(data: Path, log: list) -> None:
    check_before_training(config(data, metainfo=dict(classes=(*CLASSES, 'moon'))))
    (level, message), = of_the_checks(log)
    assert level == 'INFO' and 'has no category for 1 of 6 classes (moon)' in message


def test_a_dataset_that_is_built_otherwise_is_not_checked(data: Path, log: list) -> None:
    check_before_training(dict(type=Own, ann_file=str(data / 'instances_training.json')))
    (level, message), = of_the_checks(log)
    assert level == 'WARNING' and 'is not checked (TypeError: ' in message


def test_label_maps_may_be_of_unknown_classes(data: Path, log: list) -> None:
    check_before_training(dict(type=BaseSegDataset, data_root=str(data), data_prefix=dict(
        img_path='images/training', seg_map_path='annotations/training')))
    assert of_the_checks(log) == []


def test_a_repeated_dataset_is_read_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, files = datasets.read_coco, []
    monkeypatch.setattr(datasets, 'read_coco', lambda file, *args: files.append(file) or read(file, *args))
    one = config(data)
    other = config(data, pipeline=[*BOXES, dict(type='RandomFlip')])
    check_before_training(dict(type='ConcatDataset', datasets=[one, dict(type='RepeatDataset', times=2, dataset=one),
                                                               other]))
    assert files == [f'{data}/instances_training.json']
