"""COCO files are read whatever way their values are written, or refused in a sentence that names the entry."""
import copy
import gzip
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mmdet.datasets import CocoDataset

from openmmlab_tools.data.coco import FIELDS, read_coco
from openmmlab_tools.data.coco_checks import check_coco
from openmmlab_tools.data.findings import Kind
from openmmlab_tools.errors import FileFault
from tests.helpers import refusal
from tests.openmmlab_tools.toy import to_annotation

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


def one(index: int, **values: object) -> Callable[[dict], object]:
    return lambda coco: coco['annotations'][index].update(values)


def each(key: str, *values: object) -> Callable[[dict], object]:
    return lambda coco: [one.update({key: value}) for one, value in zip(coco['annotations'], values, strict=False)]


def more(name: str, **values: object) -> Callable[[dict], object]:
    return lambda coco: coco[name].append({**coco[name][0], **values})


def crowds(number: int) -> Callable[[dict], object]:
    """Nine cats, and a dog."""
    return lambda coco: coco.update(annotations=[
        dict(coco['annotations'][0], id=index, iscrowd=int(index < number), category_id=7 if index == 9 else 5)
        for index in range(10)])


def absurd(coco: dict) -> None:
    size = 10**9
    coco['images'][0].update(height=size, width=size)
    coco['annotations'] = [dict(coco['annotations'][0], id=index, segmentation=dict(size=[size, size], counts=counts))
                           for index, counts in enumerate(([0, size * size], 'PPYo1'))]


def findings(change: Callable[[dict], object] = dict, classes: tuple[str, ...] = ('cat', 'dog'), **purpose: bool
             ) -> list[tuple[Kind, str]]:
    coco = copy.deepcopy(GOOD)
    change(coco)
    return list(check_coco(coco, classes, **purpose))


COW, UNLOADED = dict(classes=('cat', 'dog', 'cow')), dict(segmentation=[1, 2])  # a mask that mmdet would not read
MASKS, TRIANGLE = dict(needs_masks=True), [[0, 0, 30, 0, 30, 20]]
CORNERS = [20, 10, 29, 19], [15, 5, 25, 15], [18, 12, 30, 20]


@pytest.mark.parametrize('change, options, expected', [
    (dict, {}, []), (dict, dict(classes=()), []),  # all categories are classes
    (dict, dict(classes=('cow',)), [
        (Kind.CLASSES, '1 of 1 classes (cow), so labels would not match the classes'),
        (Kind.LEFT_OUT, "3 annotations of 'cat'"), (Kind.LEFT_OUT, "1 annotations of 'dog'")]),
    (dict, COW, [(Kind.CLASS_UNUSED, 'has no category for 1 of 3 classes (cow)')]),  # labels are those that are there
    (dict, dict(COW, is_evaluated=True), [(Kind.CLASSES, 'of 3 classes (cow), which metrics need')]),
    (dict, dict(classes=('dog', 'cat')), [(Kind.CLASS_ORDER, "lists 'cat' where the classes have 'dog', and mmdet")]),
    (more('categories', id=9), {}, [(Kind.CLASSES, 'has two categories of the same name, so labels would not')]),
    (each('category_id', '5', '7', '5', '5'), {}, [
        (Kind.NOTHING_LEFT, "the annotations have category_id '5', '7', but the classes 5, 7"),
        *[(Kind.UNLISTED_CATEGORY, 'but no such category')] * 4]),
    (more('images'), {}, [(Kind.DUPLICATE, 'has id 1 2 times in images'), (Kind.SAME_FILE, 'with the ids 1, 1')]),
    (more('images', id=2, file_name='b/.././a.jpg'), {}, [
        (Kind.SAME_FILE, 'has a.jpg 2 times in images, with the ids 1, 2'), (Kind.NOT_ANNOTATED, '')]),
    (more('images', id=2, file_name='b/a.jpg'), {}, [(Kind.NOT_ANNOTATED, 'has no annotation of b/a.jpg')]),
    (lambda coco: coco.update(annotations=[]), MASKS, []),  # a test set
    (crowds(4), {}, [(Kind.SAID_TWICE, "has 'cat' at [")] * 7),
    (crowds(7), {}, [(Kind.CROWDS, "has iscrowd in 7 of the 9 annotations of 'cat'"), *[(Kind.SAID_TWICE, '')] * 7]),
    (one(0, id=2), {}, [(Kind.DUPLICATE_ANNOTATION, 'has id 2 2 times in annotations')]),
    (one(0, image_id=9), {}, [(Kind.UNLISTED_IMAGE, 'has image_id 9 in annotation 1, but no such image')]),
    (one(0, bbox=[0, 0, 32, 20]), {}, [
        (Kind.BOX, '[0, 0, 32, 20] (area 600) in annotation 1 of a.jpg (width 30, height 20), which is partly')]),
    (one(0, bbox=[1, 1, 0, 9]), {}, [(Kind.BOX, 'is smaller than one pixel')]),
    # Masks that mmdet never loads have no fault.
    (one(1, ignore=1, **UNLOADED), {}, []),
    (one(1, area=0, **UNLOADED), {}, [(Kind.BOX, 'is smaller than one pixel')]),
    (one(1, bbox=[50, 2, 3, 4], **UNLOADED), {}, [(Kind.BOX, 'which is wholly outside of the image')]),
    (one(1, category_id=9, **UNLOADED), {}, [(Kind.UNLISTED_CATEGORY, 'has category_id 9 in annotation 2, but no')]),
    (each('bbox', *CORNERS, [1, 1, 9, 9]), {}, [(Kind.CORNERS, 'has 3 boxes that extend beyond their images')]),
    (each('bbox', *CORNERS, [9, 9, 1, 1]), {}, [*[(Kind.BOX, 'partly outside')] * 3, (
        Kind.AREA, 'has area 25 in annotation 4 of a.jpg, but its mask has 5 pixels')]),
    (each('bbox', *CORNERS[:2]), {}, [(Kind.BOX, 'partly outside')] * 2),  # may be a coincidence
    (each('segmentation', TRIANGLE, None), {}, []),
    (each('segmentation', TRIANGLE, None), MASKS, [(Kind.MASK, 'has no segmentation in annotation 2 of a.jpg')]),
    (each('segmentation', TRIANGLE, []), MASKS, [(Kind.MASK, 'has no segmentation in annotation 2 of a.jpg')]),
    (each('segmentation', *[None] * 4), MASKS, [(Kind.NO_MASKS, 'no segmentation in its 4 annotations')]),
    (each('segmentation', *[[]] * 4), MASKS, [(Kind.NO_MASKS, 'no segmentation in its 4 annotations')]),
    (one(1, segmentation=[[1] * 7]), {}, [(Kind.POLYGON, 'has a polygon of 7 numbers, which mmdet ignores,')]),
    (one(1, segmentation=[[1, 2, 4, 2, 40, 9]]), {}, [(Kind.POLYGON, 'of x 1 to 40 and y 2 to 9, which is partly')]),
    (one(2, segmentation=dict(size=[30, 20], counts='')), {}, [(Kind.MASK, 'has a mask of size [30, 20] (height, w')]),
    (one(3, segmentation=dict(size=[20, 30], counts=[9, 1])), {}, [(Kind.MASK, 'add up to 10 pixels in annotation 4')]),
    (one(3, segmentation=dict(counts=[9, 1])), {}, [(Kind.POLYGON, 'has a mask without size or counts, which mmdet')]),
    *((one(1, segmentation=flat), {}, [(Kind.MASK, 'has a segmentation that is not a list of polygons [x, y, x, y')])
      for flat in ([1, 2, 4, 2, 4, 6], '1, 2, 4', [[0, 0, 1e9, 0, 1e9, 9]])),  # which would take memory to paint
    *((one(3, segmentation=dict(size=[20, 30], counts=bad)), {}, [(Kind.MASK, f'does not decode (counts {bad!r})')])
      for bad in ('zz!!', ['9'], [700, -100], [float('nan')])),
    (absurd, {}, [(Kind.MASK, 'does not decode'), (Kind.MASK, 'add up to')])])  # and takes no memory
def test_each_fault_is_told_and_no_other(change: Callable[[dict], object], options: dict, expected: list) -> None:
    actual = findings(change, **options)
    assert [kind for kind, _ in actual] == [kind for kind, _ in expected]
    assert [words for (_, detail), (_, words) in zip(actual, expected, strict=True) if words not in detail] == []


@pytest.mark.parametrize('change, counts', [
    (dict(iscrowd=1), '4 with iscrowd'), (dict(ignore=1), '4 with ignore'), (dict(area=0), '4 smaller than one pixel'),
    (dict(bbox=[99, 0, 9, 9], category_id=5), '4 wholly outside of the image'),
    (dict(segmentation=[[1, 2, 9, 9]]), '3 with a mask of two points, 1 with iscrowd')])
def test_one_box_must_not_be_ignored(change: dict, counts: str) -> None:
    actual = findings(lambda coco: [annotation.update(change) for annotation in coco['annotations']], needs_masks=True)
    assert (Kind.NOTHING_LEFT, f'has only boxes that mmdet ignores ({counts})') in actual
    actual = findings(lambda coco: [one.update(change) for one in coco['annotations'][1:]], needs_masks=True)
    assert Kind.NOTHING_LEFT not in dict(actual)


def test_labels_of_mmdet_are_other_classes_if_and_only_if_classes_do_not_match(tmp_path: Path) -> None:
    for categories in itertools.chain.from_iterable(itertools.permutations('abc', n) for n in (1, 2, 3)):
        coco = dict(GOOD, categories=[dict(id=i, name=name) for i, name in enumerate(categories)], annotations=[])
        dataset = CocoDataset(ann_file=write(tmp_path / 'f.json', coco), metainfo=dict(classes=('a', 'b', 'c')),
                              data_prefix=dict(img=''), test_mode=True)
        kinds = {kind for kind, _ in check_coco(coco, ('a', 'b', 'c'))}
        shifted = any('abc'[label] != categories[id] for id, label in dataset.cat2label.items())
        assert bool({Kind.CLASSES, Kind.CLASS_ORDER} & kinds) == shifted
        assert (Kind.CLASSES in kinds) == (set(categories) != set('abc'[:len(categories)]))


@given(st.floats(-1, 30), st.floats(-1, 20), st.floats(1, 32), st.floats(1, 22))
@example(0, -1, 1, 1)  # within the tolerance, but nothing of it is inside
def test_boxes_are_found_if_and_only_if_they_reach_out(x: float, y: float, width: float, height: float) -> None:
    is_out = x + width > 31 or y + height > 21 or x + width <= 0 or y + height <= 0 or x >= 30 or y >= 20
    assert bool(findings(one(0, bbox=[x, y, width, height], area=width * height))) == is_out


def changed(name: str, key: str, value: Any) -> dict[str, Any]:
    coco = copy.deepcopy(GOOD)
    coco[name][0][key] = value
    return coco


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


BAD_NUMBERS = ['x', '', {}, True, float('nan'), float('inf'), '1_0', 10**400]
BAD_IDS = [[], True, '', 1.5, float('nan'), 1 << 70]


@pytest.mark.parametrize('name, key, value', [
    *(('images', 'width', value) for value in (*BAD_NUMBERS, -1, 0, .5, 1e308, 10**9)),
    *((name, 'id', value) for name in ('images', 'categories', 'annotations') for value in BAD_IDS),
    *(('annotations', 'image_id', value) for value in BAD_IDS),
    *(('annotations', 'bbox', [1, 2, value, 4]) for value in (*BAD_NUMBERS, None, 1e308, 1e7)),
    *(('annotations', 'bbox', value) for value in ('1 2 3 4', {}, 5, [], [1, 2, 3, 4, 5])),
    *(('annotations', 'area', value) for value in BAD_NUMBERS),
    *(('annotations', 'iscrowd', value) for value in BAD_NUMBERS if value is not True),
    *(('images', 'file_name', value) for value in ('', 5, 'a\0b.jpg', 'a' * 256, '\ud800.jpg', 'b/' * 3000)),
    *(('categories', 'name', value) for value in ([], True, float('nan'), '\ud800'))], ids=str)
def test_a_value_of_no_use_is_named_with_its_entry(name: str, key: str, value: Any, tmp_path: Path) -> None:
    file = write(tmp_path / 'f.json', changed(name, key, value))
    message = refusal(read_coco, file, error=FileFault)
    assert message.startswith((f'{file} has {key}=', f'{file} has width=')) and f' in {name}[0], but ' in message
    assert message.endswith(': correct it.') and len(message) < 400 and '\n' not in message


@pytest.mark.parametrize('content, words', [
    (Path.mkdir, "is a folder, but ann_file must be a JSON file in COCO's layout: let the command new-config "),
    (os.mkfifo, "is a named pipe (FIFO), not a file: put a file in COCO's layout there."),
    (b'<annotation>', 'is XML, but ann_file must be a JSON file'),
    (b'', 'is empty (0 bytes): put the whole file there.'), (b'{"images": [', 'is not JSON (Expecting value'),
    (gzip.compress(json.dumps(GOOD).encode()), 'is packed (gzip): unpack it.'),
    (b'[' * 10**6, 'has lists or dicts too deep inside others'),
    (b'{"images": ' + b'9' * 5000 + b'}', 'is not JSON (Exceeds the limit'),
    (json.dumps(GOOD).encode().replace(b'cat', b'\xff'), 'is not utf-8 in line 1: save it'),
    ([GOOD], 'has no images and no categories: put a file'), (dict(GOOD, images=[]), 'has no images: put a file'),
    (dict(GOOD, annotations=None), 'has annotations=null, but annotations is a list: correct it.'),
    (dict(GOOD, categories=[5]), 'has 5 in categories[0], but an entry has keys and values'),
    (changed('images', 'id', None), "has no 'id' in images[0]: add it."),
    (changed('images', 'height', None), "has no 'height' in images[0]: add it, or let the command new-config write"),
    (dict(GOOD, images=[dict(GOOD['images'][0], width=1 << 20, height=1 << 20)]),
     'has width=1048576 and height=1048576 in images[0], but OpenCV reads')])
def test_a_file_of_no_use_is_named(content: Any, words: str, tmp_path: Path) -> None:
    file = tmp_path / 'f.json'
    if callable(content):
        content(file)
    else:
        file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    assert refusal(read_coco, str(file), error=FileFault).startswith(f'{file} {words}')


AS_TEXT = copy.deepcopy(GOOD)
AS_TEXT['images'][0].update(width='30', height='20')
AS_TEXT['annotations'][1].update(bbox=['1', 2, '3.0', 4], area='9', iscrowd='0',
                                 segmentation=[['1', '2', '4', '2', '4', '6'], [0, 0, 30, 0, 30, 20]])


@pytest.mark.parametrize('content, repairs', [
    (GOOD, []), (changed('images', 'width', 30.), []), (changed('annotations', 'iscrowd', None), []),
    (AS_TEXT, ["has width='30' in images[0] instead of 30", "has height='20' in images[0] instead of 20",
               "has bbox=['1', 2, '3.0', 4] in annotations[1] instead of [1, 2, 3, 4]",
               "has segmentation=[['1', '2', '4', '2', '4', '6'], [0, 0, 30, 0, 30, 20]] in annotations[1] instead of "
               '[[1, 2, 4, 2, 4, 6], [0, 0, 30, 0, 30, 20]]',
               "has area='9' in annotations[1] instead of 9", "has iscrowd='0' in annotations[1] instead of 0"]),
    (changed('annotations', 'area', None), ['has no area in annotations[0]']),
    (changed('categories', 'id', '5'), ['has category_id=5 in annotations[0], but the id is written otherwise in '
                                        'categories (and 2 more)'])])
def test_values_are_the_same_whatever_way_they_are_written(content: dict, repairs: list[str], tmp_path: Path) -> None:
    expected = copy.deepcopy(GOOD)
    for annotation in expected['annotations']:
        annotation.setdefault('iscrowd', 0)
    actual = read_coco(write(tmp_path / 'f.json', content))
    for annotation, other in zip(actual['annotations'], expected['annotations'], strict=True):
        assert {key: value for key, value in annotation.items() if key != 'ignore'} == other
        assert [type(number) for number in annotation['bbox']] == [int] * 4 or annotation['id'] == 3
    assert actual['images'] == expected['images'] and actual['categories'] == expected['categories']
    assert actual.repairs == repairs


@pytest.mark.parametrize('ids', [(0, 0, 1), (1., 5., 7.), ('a', 'b', 'c'), (-3, '05', '5')])
def test_ids_of_any_kind_fit_together(ids: tuple, tmp_path: Path) -> None:
    image, cat, dog = ids
    coco = copy.deepcopy(GOOD)
    coco['images'][0]['id'] = image
    for one, id in zip(coco['categories'], (cat, dog), strict=True):
        one['id'] = id
    for one in coco['annotations']:
        one.update(image_id=image, category_id=cat if one['category_id'] == 5 else dog)
    actual = read_coco(write(tmp_path / 'f.json', coco))
    names = {category['id']: category['name'] for category in actual['categories']}
    assert [names[annotation['category_id']] for annotation in actual['annotations']] == ['cat', 'dog', 'cat', 'cat']
    assert {annotation['image_id'] for annotation in actual['annotations']} == {one['id'] for one in actual['images']}
    assert actual.repairs == []


@pytest.mark.parametrize('mask, area', [
    (None, 12), ([[0, 0, 10, 0, 10, 10], [20, 0, 30, 0, 30, 10, 20, 10]], 150), (['x'], 12),
    (dict(size=[20, 30], counts=[5, 7, 500, 88]), 95), (GOOD['annotations'][2]['segmentation'], 20)])
def test_a_missing_area_is_that_of_the_mask_or_box(mask: Any, area: float, tmp_path: Path) -> None:
    coco = copy.deepcopy(GOOD)
    one(1, area=None, segmentation=mask)(coco)
    assert read_coco(write(tmp_path / 'f.json', coco))['annotations'][1]['area'] == area


def test_a_file_without_annotations_is_that_of_a_test_set(tmp_path: Path) -> None:
    file = write(tmp_path / 'f.json', {name: GOOD[name] for name in ('images', 'categories')})
    assert read_coco(file) == dict(GOOD, annotations=[])


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig', 'utf-16', 'utf-32'])
@pytest.mark.parametrize('name', ['Küken', 5])
def test_names_are_text_in_any_encoding(encoding: str, name: str | int, tmp_path: Path) -> None:
    text = json.dumps(changed('categories', 'name', name), ensure_ascii=False)
    (tmp_path / 'f.json').write_text(text, encoding=encoding)
    actual = read_coco(str(tmp_path / 'f.json'))
    assert actual['categories'][0]['name'] == str(name)
    assert len(actual.repairs) == (encoding != 'utf-8') + (name == 5)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(
    ('0', '12', '1e308', -1, 0, 1, 2, 1e308, 10**30, 'a.jpg')), lambda inner: st.lists(
    inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=6)
KEYS = [(name, key) for name, fields in FIELDS.items() for key in fields]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(KEYS), JSON, st.integers(0, 3))
def test_what_is_read_without_a_repair_is_what_mmdet_reads(tmp_path: Path, where: tuple[str, str], value: Any,
                                                           index: int) -> None:
    coco = copy.deepcopy(GOOD)
    coco[where[0]][index % len(coco[where[0]])][where[1]] = value
    file = write(tmp_path / 'f.json', coco)
    try:
        actual = read_coco(file)
    except FileFault as error:
        assert str(error).startswith(f'{file} has ')
        return
    if actual.repairs or len({annotation['id'] for annotation in actual['annotations']}) < 4:
        return
    ours, reference = (CocoDataset(ann_file=one, metainfo=dict(classes=[one['name'] for one in actual['categories']]),
                                   data_prefix=dict(img=''), test_mode=True)
                       for one in (write(tmp_path / 'again.json', actual), file))
    assert [one['instances'] for one in map(ours.get_data_info, range(len(ours)))] == [
        one['instances'] for one in map(reference.get_data_info, range(len(reference)))]
