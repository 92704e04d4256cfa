"""new-config describes the data of a layout, and the config that it writes reads them."""
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmengine.logging import MessageHub

from openmmlab_tools.data.config_datasets import check_before_training, plan_checks
from openmmlab_tools.data.findings import Kind
from openmmlab_tools.engine import train
from openmmlab_tools.own_data.checking import account_of
from openmmlab_tools.own_data.measuring import read_pictures
from openmmlab_tools.own_data.painted_samples import draw_sheet
from tests.helpers import refusal
from tests.made_configs import made
from tests.openmmlab_tools.data.test_visible_objects import (
    HEIGHT,
    WIDTH,
    Picture,
    assert_visible,
    coco,
    draw_objects,
)
from tests.openmmlab_tools.readers import layouts
from tests.openmmlab_tools.readers.layouts import PIXELS, POLYGON, stems, text
from tests.tools.conftest import save


def coco_with(change: Callable[[dict[str, Any]], object]) -> layouts.Write:
    return partial(layouts.coco, change=lambda split, content: change(content))


@pytest.mark.parametrize('key', ['ignore', 'iscrowd'])
def test_what_losses_ignore_is_not_counted_as_used(key: str, tmp_path: Path) -> None:
    """In the account, in the sheet of samples, and in the account that check makes of a COCO file itself."""
    def change(content: dict[str, Any]) -> None:
        first = content['annotations'][0]
        content['annotations'].append(dict(first, id=9, bbox=[40, 20, 20, 30], **{key: 1}))

    cfg, lines = made(coco_with(change), tmp_path, 'boxes')
    assert f'4 of 6 objects are used; skipped: 2 objects have {key}=1: losses and metrics ignore them' in (
        ' '.join(lines))
    written = layouts.dataset(cfg, 'train').get_data_info(0)['instances']
    assert [one['ignore_flag'] for one in written] == [0, 1]
    plain, _ = made(layouts.coco, tmp_path / 'two', 'boxes')
    shown, expected = (draw_sheet(one.train_dataloader.dataset.to_dict(), one.default_scope) for one in (cfg, plain))
    assert shown and expected
    for axes, others in zip(shown.axes, expected.axes, strict=True):
        assert all((image.get_array() == other.get_array()).all()
                   for image, other in zip(axes.images, others.images, strict=True))
    for split in ('train', 'val'):
        cfg[f'{split}_dataloader'].dataset.ann_file = str(
            tmp_path / f'data/annotations/instances_{split}2017.json')
        cfg[f'{split}_dataloader'].dataset.data_prefix = dict(img=f'{split}2017/')
    plan = plan_checks(cfg)[0]
    account = account_of(plan, read_pictures(plan, []).account)
    assert account[1].startswith('2 of 3 objects are used; skipped: 1 objects ')


def test_check_finds_objects_that_are_annotated_twice(tmp_path: Path) -> None:
    cfg, _ = made(layouts.coco, tmp_path, 'boxes')
    file = Path(cfg.train_dataloader.dataset.ann_file)
    coco = json.loads(file.read_text())
    coco['annotations'].append(dict(coco['annotations'][0], id=77))
    file.write_text(json.dumps(coco))
    actual = [finding for finding in plan_checks(cfg)[0].findings if finding.kind is Kind.SAID_TWICE]
    assert len(actual) == 1 and 'twice, in annotations 1 and 77' in actual[0].detail and not actual[0].is_error


def test_the_account_is_whole_in_its_file_and_short_in_the_terminal(tmp_path: Path) -> None:
    names = [f'class{index:04}' for index in range(1000)]

    def write(root: Path) -> None:
        layouts.coco(root, lambda split, content: content.update(
            categories=[dict(id=index, name=name) for index, name in enumerate(names)],
            annotations=[dict(id=index, image_id=1, category_id=index, bbox=[index / 20, 10, 20, 30])
                         for index in range(1000 if split == 'train' else 3)]))
        for name in range(40):
            save(root / f'train2017/x{name}.jpg', PIXELS)
            text(root / f'notes/{name}.md', 'x')

    _, lines = made(write, tmp_path, 'boxes')
    assert max(map(len, lines)) < 600
    assert any(line.startswith('val has no object of class class0003, class0004') and line.endswith('and 987 more.')
               for line in lines)
    account = (tmp_path / 'my_annotations/account.txt').read_text()
    summary, _, details = account.partition('\n\n')
    assert summary.splitlines() == [line for line in lines if line in summary.splitlines()]
    assert all(f'train2017/x{name}.jpg' in details and f'notes/{name}.md' in details for name in range(40))
    assert all(f'train: {name}: 1 objects in 1 images' in details for name in names)
    assert f'val: {names[-1]}: 0 objects in 0 images' in details


def test_the_account_has_the_data_for_validation(tmp_path: Path) -> None:
    layouts.yolo(tmp_path / 'data')
    layouts.yolo(tmp_path / 'other')
    text(tmp_path / 'other/README.md', 'x')
    made(None, tmp_path, 'boxes', val=str(tmp_path / 'other'))
    account = (tmp_path / 'my_annotations/account.txt').read_text()
    assert account.count('and 1 skipped: README.md.') == 1 and '# the data for validation' in account


def test_objects_without_a_mask_are_told_unless_boxes_are_asked_for(tmp_path: Path) -> None:
    def change(split: str, content: dict[str, Any]) -> None:
        for annotation in content['annotations']:
            annotation['segmentation'] = [np.ravel(POLYGON).tolist()]
        del content['annotations'][0]['segmentation']

    layouts.coco(tmp_path / 'data', change)
    for task, is_told in ((None, True), ('boxes', False)):
        _, lines = made(None, tmp_path, task, 'nano', out=f'{task}.py')
        assert any('objects have a mask, but the task is boxes, because' in line for line in lines) == is_told


def test_images_without_objects_are_kept_and_may_be_left_out(tmp_path: Path) -> None:
    save(tmp_path / 'data/images/train/empty.jpg', layouts.PIXELS)
    for drop_empty, expected in ((False, ['a', 'b', 'empty']), (True, ['a', 'b'])):
        cfg, lines = made(layouts.yolo, tmp_path, out=f'{drop_empty}.py', drop_empty=drop_empty)
        assert stems(layouts.dataset(cfg, 'train')) == expected
        assert any('1 images of train have no objects: they teach' in line for line in lines)


def test_thin_structures_keep_their_pixels(tmp_path: Path) -> None:
    thin = np.zeros((600, 800), np.uint8)
    thin[:, 100:103] = 1
    cfg, lines = made(layouts.maps('images/{1}/{0}.jpg', 'labels/{1}/{0}.png', lambda name: thin), tmp_path)
    assert cfg.scale == (800, 600) and cfg.crop_size == (320, 320)
    assert layouts.dataset(cfg, 'train')[0]['inputs'].shape == (3, 320, 320)
    assert any(line.startswith('The thinnest class is 3.0 pixels wide') for line in lines)


def test_a_validation_of_several_sizes_has_one_image_a_batch(tmp_path: Path) -> None:
    cfg, _ = made(layouts.maps('images/{1}/{0}.jpg', 'labels/{1}/{0}.png', lambda name: layouts.label_map()[
        :40 if name == 'd' else 60]), tmp_path)
    check_before_training(cfg, ['val'])
    cfg.val_dataloader.batch_size = 2
    assert 'val_dataloader.batch_size is 2, but images have several sizes' in refusal(
        check_before_training, cfg, ['val'])
    cfg.val_dataloader.dataset.pipeline[1] = dict(type='Resize', scale=(64, 64), keep_ratio=False)
    check_before_training(cfg, ['val'])


@pytest.mark.slow
def test_batches_without_objects_train(tmp_path: Path) -> None:
    def write(root: Path) -> None:
        layouts.yolo_polygons(root)
        for name in 'efgh':
            save(root / f'images/train/{name}.jpg', layouts.PIXELS)

    cfg, _ = made(write, tmp_path, iters=6, batch=1)
    train(cfg)
    assert (tmp_path / 'work/iter_6.pth').exists()
    assert np.isfinite(MessageHub.get_current_instance().log_scalars['train/loss'].data[0]).all()


@pytest.mark.parametrize('task', ['instances', 'boxes'])
@pytest.mark.parametrize('scale', [None, (70, 50)])
def test_images_of_small_objects_are_cropped(task: str, scale: tuple[int, int] | None, tmp_path: Path) -> None:
    """Images of several sizes with small objects are cropped, unless a scale is asked for, which shrinks them."""
    draw, sizes = np.random.default_rng(0), [(WIDTH, HEIGHT), (250, 180)] * 4
    images: dict[str, Picture] = {f'image_{i}': (size, draw_objects(draw, 8, size, (60, 40)))
                                  for i, size in enumerate(sizes)}
    images |= {f'background_{i}': ((WIDTH, HEIGHT), []) for i in range(4)}
    cfg, _ = made(lambda root: coco(root, images), tmp_path, task, scale=scale)
    assert ('crop_size' in cfg) == (scale is None)
    data, seen = layouts.dataset(cfg, 'train'), Counter[str]()
    np.random.seed(0)
    for _ in range(10):
        for index in range(len(data)):
            actual = data[index]
            objects = actual['data_samples'].gt_instances
            if task == 'instances':
                assert_visible(actual)
            name = Path(actual['data_samples'].img_path).stem.split('_')[0]
            assert (len(objects) > 0) == (name == 'image')
            seen[name] += 1
    assert min(seen['background'], seen['image']) > 20
