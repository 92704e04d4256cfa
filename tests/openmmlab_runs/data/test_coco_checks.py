import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lab.datasets.annotations import to_annotation
from lab.datasets.toy_shapes import CLASSES
from openmmlab_runs.data.coco import read_coco
from openmmlab_runs.data.coco_checks import check_coco
from openmmlab_runs.data.findings import Kind

# One image of 20 x 30 pixels with a box, a polygon and a mask.
GOOD = dict(
    images=[dict(id=1, file_name='a.jpg', height=20, width=30)],
    categories=[dict(id=5, name='cat'), dict(id=7, name='dog')],
    annotations=[
        dict(id=1, image_id=1, category_id=5, bbox=[0, 0, 30, 20], area=600),
        dict(id=2, image_id=1, category_id=7, bbox=[1, 2, 3, 4], area=9,
             segmentation=[[1, 2, 4, 2, 4, 6], [0, 0, 30, 0, 30, 20]]),
        to_annotation(np.eye(20, 30, dtype=bool), id=3, image_id=1, category_id=5),
        dict(id=4, image_id=1, category_id=5, bbox=[0, 0, 5, 5], area=25, iscrowd=1,
             segmentation=dict(size=[20, 30], counts=[595, 5]))])


def findings(change: Callable[[dict], object] = lambda coco: None, classes: tuple[str, ...] = ('cat', 'dog'),
             **purpose: bool) -> list[tuple[Kind, str]]:
    coco = copy.deepcopy(GOOD)
    change(coco)
    found = list(check_coco(coco, 'f.json', classes, **purpose))
    assert all(finding.file == 'f.json' for finding in found)
    return [(finding.kind, finding.detail) for finding in found]


def set_each(coco: dict, key: str, values: list) -> None:
    for annotation, value in zip(coco['annotations'], values, strict=False):
        annotation[key] = value


def test_good_annotations_have_no_fault(toy_shapes: Path) -> None:
    assert findings() == []
    file = str(toy_shapes / 'instances_training.json')
    assert list(check_coco(read_coco(file), file, CLASSES)) == []


@pytest.mark.parametrize('classes, expected', [
    (('cat', 'cow', 'dog'), [(Kind.CLASSES, 'has no category for 1 of 3 classes (cow), so labels would not match '
                                            'the classes')]),
    (('cow',), [(Kind.CLASSES, 'has no category for 1 of 1 classes (cow), so labels would not match the classes'),
                (Kind.LEFT_OUT, "has 3 annotations of 'cat', which are ignored: it is not a class"),
                (Kind.LEFT_OUT, "has 1 annotations of 'dog', which are ignored: it is not a class")]),
    # Labels are those of the classes that are there.
    (('cat', 'dog', 'cow'), [(Kind.CLASS_UNUSED, 'has no category for 1 of 3 classes (cow)')]),
    (('dog', 'cat'), [(Kind.CLASS_ORDER, "lists 'cat' where the classes have 'dog', and mmdet numbers labels in the "
                                         'order of the file')]),
    ((), []),  # all categories are
    (('cat',), [(Kind.LEFT_OUT, "has 1 annotations of 'dog', which are ignored: it is not a class")])])
def test_categories_are_the_classes_in_their_order(classes: tuple[str, ...], expected: list) -> None:
    assert findings(classes=classes) == expected


def test_a_metric_needs_a_category_for_each_class() -> None:
    assert findings(classes=('cat', 'dog', 'cow'), is_evaluated=True) == [
        (Kind.CLASSES, 'has no category for 1 of 3 classes (cow), which metrics need')]


@pytest.mark.parametrize('index, change, kind, words', [
    (0, dict(category_id=9), Kind.UNLISTED_CATEGORY, 'has category_id 9 in annotation 1, but no such category'),
    (0, dict(image_id=9), Kind.UNLISTED_IMAGE, 'has image_id 9 in annotation 1, but no such image'),
    (0, dict(id=2), Kind.DUPLICATE_ANNOTATION, 'has id 2 2 times in annotations'),
    (0, dict(bbox=[0, 0, 32, 20]), Kind.BOX, 'has bbox [0, 0, 32, 20] (area 600) in annotation 1 of a.jpg (width 30, '
                                             'height 20), which is partly outside of the image'),
    *((0, dict(bbox=[x, y, 9, 9]), Kind.BOX, 'which is wholly outside of the image') for x, y in ((40, 0), (0, -9))),
    (0, dict(bbox=[1, 1, 0, 9]), Kind.BOX, 'is smaller than one pixel'),
    (0, dict(area=0), Kind.BOX, '(area 0) in annotation 1 of a.jpg (width 30, height 20), which is smaller than one '),
    *((1, dict(segmentation=[[1] * n]), Kind.POLYGON, f'has a polygon of {n} numbers, which mmdet ignores,')
      for n in (4, 7)),
    (1, dict(segmentation=[[1, 2, 4, 2, 40, 9]]), Kind.POLYGON, 'of x 1 to 40 and y 2 to 9, which is partly'),
    (2, dict(segmentation=dict(size=[30, 20], counts='')), Kind.MASK, 'has a mask of size [30, 20] (height, width) in'),
    (3, dict(segmentation=dict(size=[20, 30], counts=[9, 1])), Kind.MASK,
     'has a mask whose counts add up to 10 pixels in annotation 4'),
    (3, dict(segmentation=dict(size=20, counts='9')), Kind.MASK, 'has a mask of size 20 (height, width) in'),
    *((3, dict(segmentation=part), Kind.POLYGON, 'has a mask without size or counts, which mmdet')
      for part in (dict(counts=[9, 1]), dict(size=[20, 30]))),
    *((1, dict(segmentation=flat), Kind.MASK, 'has a segmentation that is not a list of polygons [x, y, x, y, ...] w')
      for flat in ([1, 2, 4, 2, 4, 6], [[[1, 2], [4, 2], [4, 6]]], ['1, 2, 4'], [[1, 2, 4, 2, 4, None]], '1, 2, 4',
                   [[0, 0, 1e9, 0, 1e9, 9]])),  # which would take memory to paint
    *((3, dict(segmentation=dict(size=[20, 30], counts=counts)), Kind.MASK,
       f'has a run-length encoding that does not decode (counts {counts!r}) in annotation 4')
      for counts in ('zz!!', "b'PPYo1'", '', ['9'], [700, -100], [595.5, 4.5], [float('nan')]))])
def test_each_fault_of_an_annotation_is_found_alone(index: int, change: dict, kind: Kind, words: str) -> None:
    (found, detail), = findings(lambda coco: coco['annotations'][index].update(change))
    assert found is kind and words in detail


@pytest.mark.parametrize('change', [dict(ignore=1), dict(area=0), dict(bbox=[1, 2, 0.5, 4]), dict(bbox=[50, 2, 3, 4]),
                                    dict(category_id=9), dict(image_id=9)])
def test_masks_that_mmdet_never_loads_have_no_fault(change: dict) -> None:
    found = findings(lambda coco: coco['annotations'][1].update(change, segmentation=[1, 2]))
    assert Kind.MASK not in dict(found)


@pytest.mark.parametrize('mask', [None, [], '', {}])
def test_an_annotation_needs_a_mask_where_the_pipeline_loads_masks(mask: object) -> None:
    masks = [[[0, 0, 30, 0, 30, 20]], mask]
    assert findings(lambda coco: set_each(coco, 'segmentation', masks), needs_masks=True)[0] == (
        Kind.MASK, 'has no segmentation in annotation 2 of a.jpg (width 30, height 20), but the config reads masks')
    assert Kind.MASK not in dict(findings(lambda coco: coco['annotations'][1].pop('segmentation')))


@pytest.mark.parametrize('mask', [None, []])
def test_boxes_alone_are_told_once_where_masks_are_read(mask: object) -> None:
    assert findings(lambda coco: set_each(coco, 'segmentation', [mask] * 4), needs_masks=True) == [
        (Kind.NO_MASKS, 'has boxes only, no segmentation in its 4 annotations, but the config reads masks')]


@pytest.mark.parametrize('change, counts', [
    (dict(iscrowd=1), '4 with iscrowd'), (dict(ignore=1), '4 with ignore'), (dict(area=0), '4 smaller than one pixel'),
    (dict(bbox=[.1, .2, .3, .4]), '4 smaller than one pixel'),
    (dict(bbox=[99, 0, 9, 9]), '4 wholly outside of the image'),
    (dict(bbox=[99, 0, 9, 9], category_id=5), '4 wholly outside of the image'), (dict(category_id=9), None)])
def test_one_box_must_not_be_ignored(change: dict, counts: str | None) -> None:
    found = findings(lambda coco: [one.update(change) for one in coco['annotations']])
    assert counts is None or (Kind.NOTHING_LEFT, f'has only boxes that mmdet ignores ({counts})') in found
    assert Kind.NOTHING_LEFT in dict(found)
    found = findings(lambda coco: [one.update(change) for one in coco['annotations'][1:]])
    assert Kind.NOTHING_LEFT not in dict(found)


def test_boxes_that_are_corners_are_told_once() -> None:
    corners = [[20, 10, 29, 19], [15, 5, 25, 15], [18, 12, 30, 20], [1, 1, 9, 9]]
    assert findings(lambda coco: set_each(coco, 'bbox', corners)) == [(
        Kind.CORNERS, 'has 3 boxes that extend beyond their images, and all 4 boxes fit as '
        'corners (x1, y1, x2, y2), but a box is (x, y, width, height)')]
    corners[3] = [9, 9, 1, 1]  # no corners
    assert {kind for kind, _ in findings(lambda coco: set_each(coco, 'bbox', corners))} == {Kind.BOX}


@pytest.mark.parametrize('change, kind, words', [
    (lambda coco: set_each(coco, 'category_id', ['5', '7', '5', '5']), Kind.NOTHING_LEFT,
     "has no annotation of a class: the annotations have category_id '5', '7', but the classes 5, 7"),
    (lambda coco: coco['categories'].append(dict(id=9, name='cat')), Kind.CLASSES,
     'has two categories of the same name, so labels would not match the classes'),
    *((lambda coco, name=name: coco[name].append(coco[name][0]), Kind.DUPLICATE, f'has id {id} 2 times in {name}')
      for name, id in (('images', 1), ('categories', 5)))])
def test_each_fault_of_a_file_is_told(change: Callable[[dict], object], kind: Kind, words: str) -> None:
    assert (kind, words) in findings(change)


def test_labels_of_mmdet_are_other_classes_if_and_only_if_classes_do_not_match(tmp_path: Path) -> None:
    from mmdet.datasets import CocoDataset
    file = tmp_path / 'f.json'
    for categories in itertools.chain.from_iterable(itertools.permutations('abc', n) for n in (1, 2, 3)):
        coco = dict(GOOD, categories=[dict(id=i, name=name) for i, name in enumerate(categories)], annotations=[])
        file.write_text(json.dumps(coco))
        dataset = CocoDataset(ann_file=str(file), metainfo=dict(classes=('a', 'b', 'c')),
                              data_prefix=dict(img=''), test_mode=True)
        kinds = {finding.kind for finding in check_coco(coco, 'f.json', ('a', 'b', 'c'))}
        shifted = any('abc'[label] != categories[id] for id, label in dataset.cat2label.items())
        assert bool({Kind.CLASSES, Kind.CLASS_ORDER} & kinds) == shifted
        assert (Kind.CLASSES in kinds) == (set(categories) != set('abc'[:len(categories)]))


def test_an_image_without_annotation_is_noted_where_others_have_some() -> None:
    image = dict(id=2, file_name='b.jpg', height=9, width=9)
    assert findings(lambda coco: coco['images'].append(image)) == [(Kind.NOT_ANNOTATED, 'has no annotation of b.jpg')]
    assert findings(lambda coco: coco.update(annotations=[])) == []  # a test set


@given(st.floats(-1, 30), st.floats(-1, 20), st.floats(1, 32), st.floats(1, 22))
@example(0, -1, 1, 1)  # within the tolerance, but nothing of it is inside
def test_boxes_are_found_if_and_only_if_they_reach_out(x: float, y: float, width: float, height: float) -> None:
    is_out = x + width > 31 or y + height > 21 or x + width <= 0 or y + height <= 0 or x >= 30 or y >= 20
    assert bool(findings(lambda coco: coco['annotations'][0].update(bbox=[x, y, width, height]))) == is_out


@pytest.mark.parametrize('names, words', [
    (('a.jpg', 'a.jpg'), 'has a.jpg 2 times in images, with the ids 1, 2'),
    (('b/a.jpg', 'b//./a.jpg'), 'has b/a.jpg 2 times in images, with the ids 1, 2'), (('a.jpg', 'b/a.jpg'), None)])
def test_a_file_with_two_ids_is_found(names: tuple[str, str], words: str | None) -> None:
    images = [dict(GOOD['images'][0], id=index, file_name=name) for index, name in enumerate(names, start=1)]
    found = dict(findings(lambda coco: coco.update(images=images)))
    assert found.get(Kind.SAME_FILE) == words


def test_classes_whose_objects_are_crowds_are_found() -> None:
    def change(coco: dict, number: int) -> None:
        first = coco['annotations'][0]
        coco['annotations'] = [dict(first, id=index, iscrowd=int(index < number)) for index in range(9)]
        coco['annotations'].append(dict(first, id=10, category_id=7))

    assert findings(lambda coco: change(coco, 4)) == []
    assert findings(lambda coco: change(coco, 7)) == [(
        Kind.CROWDS, "has iscrowd in 7 of the 9 annotations of 'cat', which are not learnt (set iscrowd=0 if each is "
        'one object)')]


@pytest.mark.parametrize('size', [10**9, 1 << 20])
def test_masks_of_absurd_sizes_take_no_memory(size: int) -> None:
    def change(coco: dict) -> None:
        coco['images'][0].update(height=size, width=size)
        coco['annotations'] = [dict(coco['annotations'][0], segmentation=mask) for mask in (
            dict(size=[size, size], counts=[0, size * size]), dict(size=[size, size], counts='PPYo1'))]

    assert Kind.MASK in dict(findings(change))
