"""Panoptic annotations in COCO's own form: mmdet's configs begin to train, and faults are named."""
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mmdet.datasets import CocoPanopticDataset
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.registry import DATASETS

from openmmlab_tools.config_files import read_config
from openmmlab_tools.config_walk import walk
from openmmlab_tools.data.config_datasets import check_before_training, plan_checks
from openmmlab_tools.engine import load_config, train
from openmmlab_tools.own_data.taken_data import take_data
from openmmlab_tools.registry import in_scope
from tests.coco_form import move_data, write_coco
from tests.heads import shrunken, write_base
from tests.helpers import refusal

MASK2FORMER = 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py'
THINGS, STUFF = ('cat', 'dog'), ('sky', 'grass', 'sea')
METAINFO = dict(classes=(*THINGS, *STUFF), thing_classes=THINGS, stuff_classes=STUFF, palette=[(0, 0, 0)] * 5)


def moved(cfg: Config, root: Path, **dataset: Any) -> Config:
    """The config with its data below another root; all else is as mmdet has it."""
    move_data(cfg, root)
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'].dataset.update(dataset)
        cfg[f'{split}_dataloader'].update(num_workers=0, persistent_workers=False)
    return cfg


@pytest.fixture(autouse=True)
def panopticapi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for panopticapi, which is not on PyPI, in mmdet's transform: R + 256 G + 256^2 B is a segment's id."""
    utils = ModuleType('panopticapi.utils')
    utils.rgb2id = lambda pixels: pixels.astype(int) @ (1, 256, 256 * 256)  # type: ignore[attr-defined]
    package = ModuleType('panopticapi')
    package.utils = utils  # type: ignore[attr-defined]
    for module in (package, utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def coco(tmp_path: Path) -> Config:
    """mmdet's config, and data with the classes of COCO."""
    known = CocoPanopticDataset.METAINFO
    return moved(read_config(MASK2FORMER), write_coco(
        tmp_path / 'coco', known['thing_classes'], known['stuff_classes']))


def test_the_stock_config_has_no_fault_and_loads_masks_of_things_and_stuff(coco: Config) -> None:
    check_before_training(coco, ('train', 'val'))
    assert [finding for plan in plan_checks(coco) for finding in plan.findings if finding.is_error] == []
    with in_scope('mmdet'):
        sample = DATASETS.build(dict(coco.val_dataloader.dataset, pipeline=[
            dict(type='LoadImageFromFile'), dict(type='LoadPanopticAnnotations')]))[0]
    assert [int(mask.sum()) for mask in sample['gt_masks'].masks] == [24 * 22] * 2
    assert set(map(int, set(sample['gt_seg_map'].ravel()))) == {0, 1, 80}


def change(name: str, **values: Any) -> Callable[[Path, Config], object]:
    """Changes the first annotation of the panoptic validation, or the first segment or category."""
    def write(root: Path, cfg: Config) -> None:
        file = root / 'annotations/panoptic_val2017.json'
        content = json.loads(file.read_text())
        entry = content['categories'][0] if name == 'category' else content['annotations'][0]
        entry = entry['segments_info'][0] if name == 'segment' else entry
        entry.update(values)
        for key in [key for key, value in entry.items() if value is None]:
            del entry[key]
        file.write_text(json.dumps(content))
    return write


def without_a_map(root: Path, cfg: Config) -> None:
    (root / 'annotations/panoptic_val2017/000000000139.png').unlink()


def other_file(root: Path, cfg: Config) -> None:
    cfg.val_dataloader.dataset.ann_file = 'annotations/instances_val2017.json'


def as_objects(root: Path, cfg: Config) -> None:
    cfg.val_dataloader.dataset.type = 'CocoDataset'


def other_images(root: Path, cfg: Config) -> None:
    cfg.val_evaluator[0].ann_file = str(root / 'annotations/other.json')
    file = root / 'annotations/panoptic_val2017.json'
    (root / 'annotations/other.json').write_text(file.read_text().replace('139', '140'))


def few_classes(root: Path, cfg: Config) -> None:
    cfg.model.panoptic_head.num_stuff_classes = 52


def few_weights(root: Path, cfg: Config) -> None:
    cfg.model.panoptic_head.loss_cls.class_weight = [1.] * 80 + [0.1]


def many_boxes(root: Path, cfg: Config) -> None:
    cfg.model.test_cfg.max_per_image = 20000


@pytest.mark.parametrize('damage, words', [
    (without_a_map, '000000000139.png does not exist'),
    (change('annotation', segments_info=None), "has no segments_info in annotations[0], but a CocoPanopticDataset"),
    (change('annotation', image_id=None), "has no 'image_id' in annotations[0]: add it"),
    (change('segment', id=None), 'has a segment without id in annotations[0]'),
    (change('segment', bbox=None), "has no 'bbox' in annotations[0]: add it"),
    (change('segment', category_id=999), 'has category_id 999 in annotation 139/301, but no such category'),
    (change('category', isthing=None), 'has isthing=null in categories[0], but it is 1 for objects'),
    (other_file, 'has no segments_info in annotations[0], but a CocoPanopticDataset reads'),
    (as_objects, 'has panoptic annotations (segments_info), which only a CocoPanopticDataset reads'),
    (other_images, 'val_evaluator.ann_file is'),
    (few_classes, 'model.panoptic_head.num_stuff_classes is 52, but the dataset has 133 classes'),
    (few_weights, 'model.panoptic_head.loss_cls.class_weight has 81 weights, but needs 134'),
    (many_boxes, 'model.test_cfg.max_per_image is 20000, but the model chooses 13300 boxes from its queries')])
def test_faults_are_named_before_training(damage: Callable[[Path, Config], object], words: str, coco: Config,
                                          tmp_path: Path) -> None:
    damage(tmp_path / 'coco', coco)
    assert words in refusal(check_before_training, coco, ('train', 'val'))


def test_classes_of_things_and_stuff_must_be_stated(coco: Config) -> None:
    coco.train_dataloader.dataset.metainfo = dict(classes=THINGS + STUFF)
    assert 'set classes, thing_classes and stuff_classes' in refusal(check_before_training, coco, ('train', 'val'))


@pytest.mark.parametrize('name', ['mask2former/mask2former_r50_8xb2-lsj-50e_coco',
                                  'maskformer/maskformer_r50_ms-16xb1-75e_coco'])
def test_a_model_takes_panoptic_data_of_other_classes_and_trains(name: str, tmp_path: Path) -> None:
    root = write_coco(tmp_path / 'coco', THINGS, STUFF)
    source = moved(shrunken('mmdet', 'mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic'), root, metainfo=METAINFO)
    for _, part in walk([source[f'{split}_dataloader'] for split in ('train', 'val', 'test')]):
        part.update({'RandomResize': dict(scale=(96, 96)), 'RandomCrop': dict(crop_size=(96, 96)),
                     'Resize': dict(scale=(96, 96))}.get(str(part.get('type')), {}))
    new = take_data(shrunken('mmdet', name), source)
    head = new.model.panoptic_head
    assert (head.num_things_classes, head.num_stuff_classes) == (2, 3)
    assert head.loss_cls.class_weight == [1.] * 5 + [0.1]
    assert new.model.test_cfg.panoptic_on and new.model.test_cfg.instance_on
    for split in ('val', 'test'):  # the other metric needs panopticapi
        new[f'{split}_evaluator'] = [one for one in new[f'{split}_evaluator'] if one.type == 'CocoMetric']
    new.train_cfg = dict(type='IterBasedTrainLoop', max_iters=1, val_interval=1)
    new.param_scheduler = []
    new.optim_wrapper.type = 'OptimWrapper'
    new.default_hooks.checkpoint = None
    train(load_config(write_base(new, tmp_path / 'my.py'), {}, str(tmp_path / 'work')))
    assert MessageHub.get_current_instance().log_scalars['val/coco/segm_mAP'].current() >= 0
