"""Datasets of a config: which faults stop training, which heads do not fit, and which files are missing or not read."""
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mmdet.datasets import CocoDataset
from mmengine import fileio
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from openmmlab_tools.data.config_datasets import Plan, check_before_training, plan_checks
from openmmlab_tools.data.datasets import build_unread, check_annotations
from openmmlab_tools.data.findings import FATAL, Finding, Kind
from openmmlab_tools.data.uses import DatasetUse
from openmmlab_tools.engine import load_config
from openmmlab_tools.own_data.file_checks import check_files
from openmmlab_tools.registry import in_scope
from tests.helpers import refusal, toy_overrides
from tests.openmmlab_tools.toy import CLASSES, DETECTOR, SEGMENTOR
from tests.tools.conftest import change_annotations

MASKS = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=True)]
NotUnique = type('NotUnique', (CocoDataset,), dict(ANN_ID_UNIQUE=False))
OwnReader = type('OwnReader', (CocoDataset,), dict(
    parse_data_info=lambda self, raw_data_info: CocoDataset.parse_data_info(self, raw_data_info)))


def instances(data: Path, **more: Any) -> dict[str, Any]:
    return {**dict(type='CocoDataset', data_root=str(data), ann_file='instances_training.json',
                   data_prefix=dict(img='images/training/'), metainfo=dict(classes=CLASSES),
                   filter_cfg=dict(filter_empty_gt=True),
                   pipeline=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]), **more}


def config(dataset: dict[str, Any], split: str = 'train', **more: Any) -> Config:
    return Config({'default_scope': 'mmdet', f'{split}_dataloader': dict(dataset=dataset), **more})


def check(cfg: Config) -> None:
    check_before_training(cfg, [split for split in ('train', 'val') if f'{split}_dataloader' in cfg])


def told(log: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without mmengine's messages, of the registry and of classes in one word."""
    return [(level, message) for level, message in log if level != 'DEBUG' and 'is not a meta file' not in message]


def changed(index: int, **values: object) -> Callable[[dict], None]:
    return lambda coco: coco['annotations'][index].update(values)


FLAT, DUPLICATE = changed(0, segmentation=[1, 2, 9, 2, 9, 9]), changed(1, id=1)


@pytest.mark.parametrize('more, change, level, words', [
    ({}, FLAT, 'WARNING', 'has a segmentation that is not a list of polygons'),
    (dict(type=NotUnique), DUPLICATE, 'WARNING', 'has id 1 2 times in annotations'),
    (dict(metainfo=dict(classes=(*CLASSES, 'moon'))), dict, 'INFO', 'has no category for 1 of 6 classes (moon)')])
def test_what_mmdet_copes_with_is_told(data: Path, log: list, more: dict, change: Callable, level: str, words: str
                                       ) -> None:
    change_annotations(data / 'instances_training.json', change)
    check(config(instances(data, **more)))
    [(actual, message)] = told(log)
    assert actual == level and f'{data}/instances_training.json {words}' in message


def without_masks(coco: dict) -> None:
    for annotation in coco['annotations']:
        del annotation['segmentation']


BOXES_ONLY = 'has boxes only, no segmentation in its 19 annotations, but the config reads masks: take a config for'
SEGM = dict(split='val', val_evaluator=[dict(type='mmdet.CocoMetric', metric=['bbox', 'segm'])])


@pytest.mark.parametrize('more, options, change, words', [
    (dict(pipeline=MASKS), {}, FLAT, 'has a segmentation that is not a list of polygons'),
    (dict(pipeline=MASKS), {}, lambda coco: coco['annotations'][0].pop('segmentation'), 'has no segmentation in '),
    (dict(pipeline=MASKS), {}, without_masks, BOXES_ONLY), ({}, SEGM, without_masks, BOXES_ONLY),
    ({}, {}, DUPLICATE, 'has id 1 2 times in annotations'),
    ({}, {}, lambda coco: [one.update(iscrowd=1) for one in coco['annotations']], 'has only boxes that mmdet '),
    ({}, {}, lambda coco: coco.update(annotations=[]), 'has no annotations, and filter_cfg.filter_empty_gt skips'),
    ({}, {}, lambda coco: [image.update(width=str(image['width'])) for image in coco['images']], "has width='"),
    ({}, {}, lambda coco: coco['categories'].pop(0), 'has no category for 1 of 5 classes (sun), so labels'),
    ({}, {}, lambda coco: coco['categories'].reverse(), "lists 'square' where the classes have 'sun', and")])
def test_what_mmdet_fails_on_is_an_error(data: Path, more: dict, options: dict, change: Callable, words: str) -> None:
    change_annotations(data / 'instances_training.json', change)
    message = refusal(check, config(instances(data, **more), **options))
    assert message.startswith(f'{data}/instances_training.json {words}')


def test_a_missing_file_is_told_by_its_whole_path_with_the_keys_to_correct(data: Path, monkeypatch: pytest.MonkeyPatch
                                                                           ) -> None:
    monkeypatch.chdir(data.parent)
    dataset = instances(Path('data'), ann_file='no.json')
    assert refusal(check, config(dict(type='RepeatDataset', times=2, dataset=dataset))) == (
        f'{data}/no.json does not exist: put the file there, or correct train_dataloader.dataset.dataset.data_root, '
        '.ann_file or .data_prefix.')


@pytest.mark.parametrize('kind', [kind for kind in Kind if kind.weight == FATAL])
def test_a_fault_that_ends_a_run_is_told_with_what_to_do(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(DatasetUse(['train'], 'train_dataloader.dataset'),
                findings=[Finding(kind, 'a.json', 'is odd: put it there')] * 2)
    monkeypatch.setattr('openmmlab_tools.data.config_datasets.plan_checks', lambda cfg, splits: [plan])
    message = refusal(check_before_training, Config(), ['train'])
    assert message.startswith('a.json is odd') and message.endswith('.') and '..' not in message and '{' not in message
    assert kind is Kind.DATASET or f'(and 1 more of this kind): {kind.remedy.format(name=plan.name)} (' in message


def test_a_dataset_that_cannot_be_built_is_not_checked(log: list) -> None:
    check(config(dict(type='NoDataset', ann_file='instances.json')))
    level, message = told(log)[-1]
    assert level == 'WARNING' and "is not checked (KeyError: 'NoDataset is not in the " in message


@pytest.mark.parametrize('wrap', [
    lambda one: dict(type='RepeatDataset', times=2, dataset=one),
    lambda one: dict(type='ClassBalancedDataset', oversample_thr=0.1, dataset=one),
    lambda one: dict(type='ConcatDataset', datasets=[one, one])])
def test_what_wraps_a_dataset_passes_if_it_does(wrap: Callable[[dict], dict], data: Path, log: list) -> None:
    cfg = config(wrap(instances(data)))
    check(cfg)
    assert told(log) == []
    change_annotations(data / 'instances_training.json', lambda coco: coco.update(annotations=[]))
    assert 'instances_training.json has no annotations' in refusal(check, cfg)


def test_a_head_has_the_number_of_classes(toy_shapes: Path) -> None:
    model = dict(roi_head=dict(bbox_head=[dict(num_classes=80), dict(num_classes=80)]))
    assert refusal(check, config(instances(toy_shapes), model=model)) == (
        'model.roi_head.bbox_head.0.num_classes is 80, but the dataset has 5 classes (sun, ball, kite, boat, square) '
        '(and 1 more of this kind): correct it, or train_dataloader.dataset.metainfo.classes '
        '(the command check finds all).')


@pytest.mark.parametrize('more, model, expected', [
    # HTC; Panoptic FPN, with annotations in another layout; Grounding DINO
    ({}, dict(rpn_head=dict(num_classes=1), roi_head=dict(bbox_head=[dict(num_classes=5)] * 3,
                                                          semantic_head=dict(num_classes=183))), []),
    (dict(type=OwnReader), dict(roi_head=dict(bbox_head=dict(num_classes=80)), semantic_head=dict(num_classes=53)),
     [(Kind.NOT_CHECKED, 'instances_training.json')]),
    (dict(return_classes=True), dict(bbox_head=dict(num_classes=256)), []),
    ({}, dict(roi_head=dict(bbox_head=[dict(num_classes=5), dict(num_classes=3)])),
     [(Kind.TOO_FEW_CLASSES, 'model.roi_head.bbox_head.1.num_classes')]),
    (None, dict(decode_head=dict(num_classes=6),
                auxiliary_head=[dict(num_classes=6), dict(num_classes=2, type='STDCHead')]), []),
    (None, dict(decode_head=[dict(num_classes=6), dict(num_classes=4)]),
     [(Kind.TOO_FEW_CLASSES, 'model.decode_head.1.num_classes')])])
def test_heads_that_do_not_fit_are_named(more: dict | None, model: dict, expected: list, toy_shapes: Path) -> None:
    label_maps = dict(
        type='mmseg.BaseSegDataset', data_root=str(toy_shapes), metainfo=dict(classes=('background', *CLASSES)),
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'))
    cfg = config(label_maps if more is None else instances(toy_shapes, **more), model=model)
    plan, = plan_checks(cfg)
    assert [(finding.kind, finding.file.removeprefix(f'{toy_shapes}/')) for finding in plan.findings] == expected
    if more is None:
        labels = [finding for checked in check_files(plan) for finding in checked.findings]
        assert {finding.kind for finding in labels} == ({Kind.LABEL} if expected else set())


# A head of a user with the name of mmseg's class.
OWN_HEAD = type('Mask2FormerHead', (nn.Module,), {})
MODELS.register_module(name='OwnMaskHead', module=OWN_HEAD)
SLIDING = dict(mode='slide', crop_size=(64, 64), stride=(32, 32))


@pytest.mark.parametrize('split, model, told', [
    ('train', dict(decode_head=dict(type='FCNHead', num_classes=6, loss_decode=[dict(class_weight=[1., 2.])])),
     'model.decode_head.loss_decode.0.class_weight has 2 weights, but needs 6: the dataset has 6 classes'),
    ('train', dict(decode_head=dict(type='Mask2FormerHead', num_classes=6, loss_cls=dict(class_weight=[1.] * 6))),
     'has 6 weights, but needs 7: the dataset has 6 classes (background, sun, ball, kite, boat and 1 more), and one'),
    ('val', dict(decode_head=dict(type='FCNHead', num_classes=6, loss_decode=dict(class_weight=[1., 2.]))), None),
    ('val', dict(decode_head=dict(type='Mask2FormerHead', num_classes=6), test_cfg=SLIDING),
     "model.test_cfg.mode is slide, but mmseg's Mask2FormerHead makes masks of the whole image for each window"),
    ('val', dict(decode_head=dict(type='MaskFormerHead', num_classes=6), test_cfg=SLIDING), None),
    ('val', dict(decode_head=dict(type='OwnMaskHead', num_classes=6), test_cfg=SLIDING), None)])
def test_keys_that_would_fail_later_stop_a_run(split: str, model: dict, told: str | None, toy_shapes: Path) -> None:
    dataset = dict(
        type='BaseSegDataset', data_root=str(toy_shapes), metainfo=dict(classes=('background', *CLASSES)),
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'))
    cfg = config(dataset, split, model=model)
    cfg.default_scope = 'mmseg'
    if told:
        assert told in refusal(check, cfg)
    else:
        check(cfg)


def test_images_of_training_in_validation_are_counted(data: Path) -> None:
    coco = json.loads((data / 'instances_validation.json').read_text())
    own = len(coco['images'])
    for image in coco['images']:
        image['file_name'] = f'validation/{image["file_name"]}'
    coco['images'] += [dict(id=100 + index, file_name=f'./training/{index:06}.jpg', width=9, height=9)
                       for index in (99, 2, 3)]
    (data / 'both.json').write_text(json.dumps(coco))
    both = instances(data, ann_file='both.json', data_prefix=dict(img='images/training/../'), test_mode=True)
    plans = plan_checks(config(instances(data), val_dataloader=dict(dataset=both)))
    assert [(plan.splits, finding.detail) for plan in plans for finding in plan.findings
            if finding.kind is Kind.SHARED] == [
        (['val'], f'has {own + 3} images, of which 2 are also in training, such as {data}/images/training/.././'
                  'training/000002.jpg')]


CONFIGS = pytest.mark.parametrize('path', [DETECTOR, SEGMENTOR], ids=['detector', 'segmentor'])


def toy(path: Path, root: object, **more: Any) -> Config:
    metric = {'val_evaluator.ann_file': f'{root}/instances_validation.json'} if path == DETECTOR else {}
    return load_config(path, toy_overrides(Path('x'), **{
        f'{split}_dataloader.dataset.data_root': f'{root}/' for split in ('train', 'val', 'test')}, **metric, **more))


def pack(data: Path) -> str:
    return f'zip://::{shutil.make_archive(str(data), "zip", data)}'


@CONFIGS
@pytest.mark.parametrize('root_of', [str, pack])
def test_a_missing_file_ends_a_run_before_it_begins(path: Path, root_of: Callable[[Path], str], data: Path) -> None:
    folder, suffix, split = ('images/training', 'jpg', 'train') if path == DETECTOR else (
        'annotations/validation', 'png', 'val')
    for number in (1, 3):
        (data / f'{folder}/00000{number}.{suffix}').unlink()
    root = root_of(data)
    assert refusal(check, toy(path, root)) == (
        f'{fileio.join_path(root, folder)}/000001.{suffix} does not exist (and 1 more of this kind): put the '
        f'files there, or correct {split}_dataloader.dataset.data_root, .ann_file or .data_prefix '
        '(the command check finds all).')


@pytest.mark.parametrize('path, split', [(DETECTOR, 'images'), (SEGMENTOR, 'annotations')])
@pytest.mark.parametrize('make, words', [
    (os.mkfifo, 'is a named pipe (FIFO), not a file'), (os.mkdir, 'is a folder'),
    (lambda name: os.symlink('no', name), 'is a link to a file that does not exist'),
    (lambda name: os.symlink('/dev/zero', name), 'is a device, not a file')])
def test_what_is_no_file_is_not_opened(path: Path, split: str, make: Callable, words: str, data: Path) -> None:
    file = sorted((data / split / 'training').iterdir())[5]
    file.unlink()
    make(file)
    assert refusal(check, toy(path, data)).startswith(f'{file} {words}: put the files there')


@CONFIGS
@pytest.mark.parametrize('root_of', [str, pack])
def test_images_that_are_not_read_are_noted_and_nothing_else(path: Path, root_of: Callable[[Path], str], data: Path,
                                                             log: list) -> None:
    """An image that no annotation names; a suffix that only some have; a label map without an image."""
    shutil.copy(data / 'images/training/000000.jpg', data / 'images/training/more.JPG')
    shutil.copy(data / 'annotations/training/000000.png', data / 'annotations/training/lone.png')
    root = root_of(data)
    check(toy(path, root))
    images, ending = fileio.join_path(root, 'images/training'), '; the command check finds all.'
    reason = 'does not end with .jpg (img_suffix)' if path == SEGMENTOR else (
        f'is not named by {fileio.join_path(root, "instances_training.json")}')
    assert [entry for entry in log if entry[0] != 'DEBUG'] == [
        ('WARNING', f'{fileio.join_path(root, "annotations/training")}/lone.png has no image in {images}{ending}'),
        ] * (path == SEGMENTOR) + [('INFO', f'note: {images}/more.JPG {reason}{ending}')]


def test_a_list_names_files_that_are_there(data: Path) -> None:
    names, key = data / 'names.txt', 'train_dataloader.dataset.ann_file'
    names.write_text('000001\nno\n000002')
    assert refusal(check, toy(SEGMENTOR, data, **{key: 'names.txt'})).startswith(
        f'{data}/images/training/no.jpg does not exist: put the files there, or correct train_dataloader.')
    names.write_text('000001\n000002')  # may be a part of the folder
    check(toy(SEGMENTOR, data, **{key: 'names.txt'}))
    for file, words in (('no.txt', 'does not exist: put the file there'), ('images', 'is a folder: put a file with')):
        assert refusal(check, toy(SEGMENTOR, data, **{key: file})).startswith(f'{data}/{file} {words}')
    assert 'is an address, but mmseg reads a list of names from the disk' in refusal(
        check, toy(SEGMENTOR, pack(data), **{key: 'names.txt'}))


@pytest.mark.parametrize('more', [
    {'train_dataloader.dataset.pipeline.0.type': 'LoadImageFromNDArray'},  # a loader of its own
    {'train_dataloader.dataset.pipeline.0.backend_args': dict(backend='lmdb', db_path='x')}])
def test_files_that_are_read_in_another_way_are_not_looked_for(data: Path, more: dict) -> None:
    (data / 'images/training/000003.jpg').unlink()
    plan, *_ = plan_checks(toy(DETECTOR, data, **more))
    assert plan.findings == []


@CONFIGS
def test_a_damaged_archive_ends_a_run_before_it_begins(path: Path, data: Path) -> None:
    root = pack(data)
    os.truncate(f'{data}.zip', 5120)
    said = refusal(check, toy(path, root))
    assert said.startswith('train_dataloader.dataset cannot be read: zip://') and 'the archive is damaged' in said


@pytest.mark.parametrize('kind', ['CocoDataset', 'CocoPanopticDataset', 'Objects365V1Dataset'])
def test_a_file_of_json_that_is_cut_is_named(kind: str, tmp_path: Path) -> None:
    (tmp_path / 'a.json').write_text('{"images": [')
    with in_scope('mmdet'):
        dataset = build_unread(dict(type=kind, data_root=str(tmp_path), ann_file='a.json', data_prefix=dict(img='')))
    told = refusal(check_annotations, dataset, False, False)
    assert told.startswith(f'{tmp_path}/a.json is not JSON (Expecting value: line 1 column 13')


def renamed(coco: dict) -> None:
    for image in coco['images']:
        image['file_name'] = f'x{image["file_name"]}'


def halved(coco: dict) -> None:
    for image in coco['images']:
        image['width'] //= 2


def moved(coco: dict) -> None:
    for annotation in coco['annotations']:
        annotation['bbox'][0] += 5


def in_a_folder(coco: dict) -> None:
    for image in coco['images']:
        image['file_name'] = f'validation/{image["file_name"]}'


@pytest.mark.parametrize('change, words', [
    (dict, ''), (in_a_folder, ''), (lambda coco: coco['annotations'].pop(), ''),
    (lambda coco: coco['images'].pop(), 'which lacks 1 of the 4 images in'),
    (renamed, ', but its name is 0'),
    (halved, 'in {root}/instances_validation.json: correct the path'),
    (moved, 'which has none of the'), (lambda coco: coco.update(annotations=[]), 'which has none of the')])
def test_a_metric_with_the_annotations_of_other_images_is_told(change: Callable, words: str, data: Path) -> None:
    """Ids begin anew in each split, so ids alone do not tell."""
    coco = json.loads((data / 'instances_validation.json').read_text())
    change(coco)
    (data / 'other.json').write_text(json.dumps(coco))
    own = instances(data, ann_file='instances_validation.json', data_prefix=dict(img='images/validation/'))
    metric = dict(type='CocoMetric', ann_file=str(data / 'other.json'))
    right = dict(metric, ann_file=f'{data}/instances_validation.json')
    cfg = config(own, 'val', val_evaluator=[right, metric])
    if not words:
        return check(cfg)
    told = refusal(check, cfg)
    assert told.startswith(f'val_evaluator.ann_file is {data}/other.json, wh') and words.format(root=data) in told


@pytest.mark.parametrize('wrap', [
    lambda one: one, lambda one: dict(type='RepeatDataset', dataset=one, times=2),
    lambda one: dict(type='ConcatDataset', datasets=[one, one]),
    lambda one: dict(type='ClassBalancedDataset', dataset=one, oversample_thr=0.5)])
@pytest.mark.parametrize('splits', [('test',), ('val',), ('train', 'val'), ('train', 'val', 'test')])
def test_images_of_other_splits_are_not_noted(wrap: Callable, splits: tuple[str, ...], data: Path, log: list) -> None:
    """All splits of the config share a folder, as in configs of new-config; one more image belongs to none."""
    coco = json.loads((data / 'instances_training.json').read_text())
    for name, images in (('train', coco['images'][:4]), ('val', coco['images'][4:6]), ('test', coco['images'][6:])):
        (data / f'{name}.json').write_text(json.dumps(dict(coco, images=images, annotations=[
            one for one in coco['annotations'] if one['image_id'] in {image['id'] for image in images}])))
    cfg = Config(dict(default_scope='mmdet', **{
        f'{split}_dataloader': dict(dataset=wrap(instances(data, ann_file=f'{split}.json')))
        for split in ('train', 'val', 'test')}))
    check_before_training(cfg, splits)
    assert told(log) == []
    shutil.copy(data / 'images/training/000000.jpg', data / 'images/training/more.jpg')
    check_before_training(cfg, splits)
    assert {message.split(' is not named by ')[0] for _, message in told(log)} == {
        f'note: {data}/images/training/more.jpg'}


def test_areas_that_cannot_be_right_are_told(data: Path, log: list) -> None:
    coco = json.loads((data / 'instances_training.json').read_text())
    for annotation in coco['annotations']:
        annotation['area'] = 0.02
    (data / 'instances_training.json').write_text(json.dumps(coco))
    check(config(instances(data)))
    (level, message), = told(log)
    assert level == 'WARNING' and f'has area 0.02 in annotation {coco["annotations"][0]["id"]} of ' in message
    assert f'pixels (and {len(coco["annotations"]) - 1} more of this kind); the command check' in message
