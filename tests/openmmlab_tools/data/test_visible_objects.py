"""After a pipeline, each object has a pixel in the image, and its box fits its mask."""
import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image
from pycocotools import mask as coco_mask

from openmmlab_tools.data.visible_objects import KeepVisibleObjects
from tests.helpers import ROOT, refusal

WIDTH, HEIGHT = 700, 500
LETTER = [[20, 20, 60, 20, 60, 440, 640, 440, 640, 480, 20, 480]]  # an L whose box is nearly the image
Size = tuple[int, int]  # width and height
Object = tuple[Any, list[float]]  # a mask, and a box: x, y, width and height
Picture = tuple[Size, list[Object]]
KEEP = dict(type='openmmlab_tools.KeepVisibleObjects')


@pytest.fixture(autouse=True)
def mmdet() -> Any:
    with DefaultScope.overwrite_default_scope('mmdet'):
        yield


def boxes_of(masks: np.ndarray) -> np.ndarray:
    """The smallest boxes that hold masks, `(N, H, W)`: left, top, right, bottom."""
    actual = []
    for mask in masks:
        rows, columns = np.nonzero(mask)
        actual.append((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
    return np.array(actual, float).reshape(-1, 4)


def assert_visible(found: dict[str, Any]) -> int:
    """Checks a packed sample, and returns how many objects it has."""
    objects, image = found['data_samples'].gt_instances, found['inputs']
    masks = objects.masks.to_ndarray()
    assert len(masks) == len(objects.labels) == len(objects.bboxes)
    if len(masks):
        assert masks.shape[1:] == image.shape[1:] and masks.any(axis=(1, 2)).all()
        assert np.abs(objects.bboxes.numpy() - boxes_of(masks)).max() <= 1
    return len(masks)


def sample(objects: list[Object]) -> dict[str, Any]:
    """A sample of CocoDataset, whose image is loaded."""
    return dict(img=np.zeros((HEIGHT, WIDTH, 3), np.uint8), img_shape=(HEIGHT, WIDTH), ori_shape=(HEIGHT, WIDTH),
                img_path='a.png', height=HEIGHT, width=WIDTH, img_id=0, instances=[
                    dict(mask=mask, bbox=[x, y, x + w, y + h], bbox_label=0, ignore_flag=0)
                    for mask, (x, y, w, h) in objects])


def draw_objects(draw: np.random.Generator, number: int, size: Size = (WIDTH, HEIGHT), largest: Size = (WIDTH, HEIGHT)
                 ) -> list[Object]:
    """Objects of an image, of one pixel to the largest: solid, hollow, L-shaped, and in two parts."""
    actual = []
    for _ in range(number):
        w, h = np.exp(draw.uniform(0, np.log(largest))).astype(int)
        x, y = draw.integers(0, size[0] - w + 1), draw.integers(0, size[1] - h + 1)
        mask = np.zeros(size[::-1], np.uint8, order='F')
        mask[y:y + h, x:x + w] = 1
        thin, kind = 1 + min(w, h) // 5, draw.integers(4)
        inner = [None, np.s_[y + thin:y + h - thin, x + thin:x + w - thin], np.s_[y:y + h - thin, x + thin:x + w],
                 np.s_[y:y + h, x + thin:x + w - thin]][kind]
        if inner is not None:
            mask[inner] = 0
        rle = coco_mask.encode(mask)
        actual.append((dict(rle, counts=rle['counts'].decode()), [float(x), float(y), float(w), float(h)]))
    return actual


LOAD = [dict(type='LoadAnnotations', with_bbox=True, with_mask=True)]
PACK = [dict(type='PackDetInputs', meta_keys=())]
CROPS = [
    dict(type='RandomCrop', crop_size=(200, 200)),
    dict(type='RandomCrop', crop_size=(40, 90), allow_negative_crop=True),
    dict(type='RandomCrop', crop_size=(150, 300), crop_type='absolute_range', allow_negative_crop=True),
    dict(type='RandomCrop', crop_size=(0.3, 0.3), crop_type='relative_range'),
    dict(type='MinIoURandomCrop')]
MOVES = [
    dict(type='RandomFlip', prob=0.5), dict(type='Resize', scale_factor=0.23, keep_ratio=True),
    dict(type='Resize', scale=(301, 97), keep_ratio=False), dict(type='Expand', ratio_range=(1, 2)),
    dict(type='RandomChoice', transforms=[[dict(type='Resize', scale_factor=factor, keep_ratio=True)] for factor in (
        0.5, 1.5)] + [[dict(type='RandomCrop', crop_size=(90, 90), allow_negative_crop=True)]]),
    dict(type='Rotate', prob=1.), dict(type='ShearX', prob=1.), dict(type='TranslateY', prob=1.),
    dict(type='CutOut', n_holes=3, cutout_ratio=(0.4, 0.4)), dict(type='RandomErasing', n_patches=3, ratio=0.4)]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.lists(st.sampled_from([*CROPS, *MOVES]), max_size=4))
def test_after_any_transforms(seed: int, number: int, transforms: list[dict[str, Any]]) -> None:
    np.random.seed(seed)
    objects = draw_objects(np.random.default_rng(seed), number)
    for allow in (False, True):
        actual = Compose([*LOAD, *transforms, dict(KEEP, allow_negative=allow), *PACK])(sample(objects))
        if actual is not None:
            assert assert_visible(actual) or allow or not objects


def test_an_l_shaped_object_is_there_only_if_it_is_seen() -> None:
    """Its box is in each of these crops, and mmdet keeps the object in all of them."""
    outcomes = Counter[bool]()
    for seed in range(40):
        actual = []
        for keep in ([], [KEEP]):
            np.random.seed(seed)
            actual.append(Compose([*LOAD, dict(type='RandomCrop', crop_size=(100, 100)), *keep, *PACK])(
                sample([(LETTER, [20., 20., 620., 460.])])))
        masks = actual[0]['data_samples'].gt_instances.masks.to_ndarray()
        assert len(masks) == 1
        outcomes[bool(masks.any())] += 1
        assert (actual[1] is not None) == masks.any()
        if actual[1] is not None:
            assert assert_visible(actual[1]) == 1
    assert min(outcomes.values()) > 5


@pytest.mark.parametrize('options', [dict(poly2mask=False), dict(box_type=None), {}])
def test_other_kinds_of_masks_and_boxes(options: dict[str, Any]) -> None:
    load = [dict(LOAD[0], **options)]
    seen = 0
    for seed in range(20):
        np.random.seed(seed)
        actual = Compose([*load, dict(type='RandomCrop', crop_size=(150, 150)), KEEP])(sample(
            [(LETTER, [20., 20., 620., 460.]), ([[300, 20, 420, 20, 420, 130, 300, 130]], [300., 20., 120., 110.])]))
        if actual is not None:
            boxes, masks = actual['gt_bboxes'], actual['gt_masks']
            assert isinstance(boxes, np.ndarray if 'box_type' in options else HorizontalBoxes)
            assert len(boxes) == len(masks) == len(actual['gt_bboxes_labels']) == len(actual['gt_ignore_flags'])
            seen += len(boxes)
            boxes = boxes if isinstance(boxes, np.ndarray) else boxes.numpy()
            assert np.abs(boxes - boxes_of(masks.to_ndarray())).max() <= 1
    assert seen > 5


def masked_pipelines() -> dict[str, list[Any]]:
    """The training pipelines of all configs with masks, each once, by the name of its first config."""
    actual: dict[str, tuple[str, list[Any]]] = {}
    for path in sorted((ROOT / 'configs').glob('[!_]*/*.py')):
        cfg = Config.fromfile(path)
        pipeline = cfg.get('train_dataloader', {}).get('dataset', {}).get('pipeline', [])
        if any(step.get('with_mask') for step in pipeline):
            actual.setdefault(repr(pipeline), (path.stem, pipeline))
    return dict(actual.values())


@pytest.mark.slow
def test_after_the_pipelines_of_all_configs() -> None:
    pipelines = masked_pipelines()
    assert len(pipelines) >= 5
    for name, pipeline in pipelines.items():
        transforms = copy.deepcopy(pipeline[1:])  # the image is loaded
        transforms[-1] = PACK[0]
        run, numbers = Compose(transforms), []
        for seed in range(12):
            np.random.seed(seed)
            # COCO's images are enlarged, unless the pipeline draws the scale.
            actual = run(sample(draw_objects(np.random.default_rng(seed), 12)))
            if actual is not None:
                numbers.append(assert_visible(actual))
        assert sum(numbers) > 20, name


def coco(folder: Path, images: dict[str, Picture]) -> Path:
    """Writes a data set in COCO's layout, from sizes and objects of its images."""
    (folder / 'train').mkdir(parents=True)
    content: dict[str, list[Any]] = dict(images=[], annotations=[], categories=[dict(id=1, name='thing')])
    for number, (name, (size, objects)) in enumerate(images.items(), 1):
        Image.fromarray(np.full((*size[::-1], 3), number, np.uint8)).save(folder / 'train' / f'{name}.png')
        content['images'].append(dict(id=number, file_name=f'{name}.png', width=size[0], height=size[1]))
        content['annotations'] += [dict(id=1000 * number + i, image_id=number, category_id=1, iscrowd=0, bbox=box,
                                        area=box[2] * box[3], segmentation=mask)
                                   for i, (mask, box) in enumerate(objects)]
    (folder / 'train.json').write_text(json.dumps(content))
    return folder


def dataset(folder: Path, *pipeline: dict[str, Any]) -> Any:
    return DATASETS.build(dict(
        type='CocoDataset', data_root=str(folder), ann_file='train.json', data_prefix=dict(img='train/'),
        metainfo=dict(classes=('thing',)), filter_cfg=dict(filter_empty_gt=False),
        pipeline=[dict(type='LoadImageFromFile'), *LOAD, *pipeline, KEEP, dict(type='PackDetInputs')]))


def test_background_stays_and_an_image_that_lost_its_objects_is_drawn_again(tmp_path: Path) -> None:
    dot = ([[300, 20, 303, 20, 303, 23, 300, 23]], [300., 20., 3., 3.])  # in few of the crops
    images: dict[str, list[Object]] = dict(lost=[dot], background=[], letter=[(LETTER, [20., 20., 620., 460.])])
    data = dataset(coco(tmp_path, {name: ((WIDTH, HEIGHT), objects) for name, objects in images.items()}),
                   dict(type='RandomCrop', crop_size=(300, 300), allow_negative_crop=True))
    np.random.seed(0)
    seen = Counter[tuple[str, int]]()
    for _ in range(20):
        for index in range(3):
            actual = data[index]
            seen[Path(actual['data_samples'].img_path).stem, assert_visible(actual)] += 1
    assert {*seen} == {('background', 0), ('letter', 1), ('lost', 1)}
    assert seen['background', 0] >= 20


def test_a_transform_that_leaves_masks_behind_is_named() -> None:
    masks = BitmapMasks(np.ones((1, 10, 10), np.uint8), 10, 10)
    boxes = HorizontalBoxes(np.array([[0., 0., 10., 10.]], np.float32))
    for found in (dict(img_shape=(20, 10), gt_masks=masks, gt_bboxes=boxes),
                  dict(img_shape=(10, 10), gt_masks=masks, gt_bboxes=boxes[[0, 0]])):
        assert 'changes the image, but not its masks' in refusal(
            KeepVisibleObjects(), dict(found, img_path='a.png', instances=[{}]))


def test_without_masks_boxes_stay() -> None:
    boxes = HorizontalBoxes(np.array([[0., 0., 10., 10.]], np.float32))
    actual = KeepVisibleObjects()(dict(img_shape=(20, 10), gt_bboxes=boxes, instances=[{}]))
    assert actual is not None and actual['gt_bboxes'] is boxes
    lost = dict(img_shape=(20, 10), gt_bboxes=boxes[[]], instances=[{}])
    assert KeepVisibleObjects()(lost) is None
    assert KeepVisibleObjects(allow_negative=True)(lost) is lost
    assert KeepVisibleObjects()(dict(lost, instances=[])) is not None
