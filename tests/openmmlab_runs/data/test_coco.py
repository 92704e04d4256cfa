"""COCO files are read whatever way their values are written, or refused in a sentence that names the entry."""
import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmdet.datasets import CocoDataset

from openmmlab_runs.data.coco import FIELDS, read_coco
from openmmlab_runs.data.findings import UnusableFile
from tests.conftest import refusal
from tests.openmmlab_runs.data.test_coco_checks import GOOD


def changed(name: str, key: str, value: Any) -> dict[str, Any]:
    coco = copy.deepcopy(GOOD)
    coco[name][0][key] = value
    return coco


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert refusal(read_coco, str(tmp_path)) == (
        f"{tmp_path} is a folder, but ann_file must be a JSON file in COCO's layout: let tools/misc/new_config.py "
        'write a config for the folder, which may hold Pascal VOC.')


def test_a_file_without_annotations_is_that_of_a_test_set(tmp_path: Path) -> None:
    file = tmp_path / 'f.json'
    file.write_text(json.dumps({name: GOOD[name] for name in ('images', 'categories')}))
    assert read_coco(str(file)) == dict(GOOD, annotations=[])


BAD_NUMBERS = ['x', '', [], {}, True, float('nan'), float('inf'), '1_0', '0x1', [1], 10**400]
BAD_IDS = [[], {}, True, '', 1.5, float('nan'), float('inf'), [1], 1 << 70]


@pytest.mark.parametrize('name, key, value', [
    *(('images', key, value) for key in ('width', 'height') for value in (*BAD_NUMBERS, -1, 0, .5, 1e308, 10**9)),
    *((name, 'id', value) for name in ('images', 'categories', 'annotations') for value in BAD_IDS),
    *(('annotations', key, value) for key in ('image_id', 'category_id') for value in BAD_IDS),
    *(('annotations', 'bbox', [1, 2, value, 4]) for value in (*BAD_NUMBERS, None, 1e308, 1e7)),
    *(('annotations', 'bbox', value) for value in ('1 2 3 4', {}, 5, [], [1, 2, 3, 4, 5])),
    *(('annotations', 'area', value) for value in BAD_NUMBERS),
    *(('annotations', key, value) for key in ('iscrowd', 'ignore') for value in BAD_NUMBERS if value is not True),
    *(('images', 'file_name', value) for value in (
        '', 5, [], {}, True, 'a\0b.jpg', 'a' * 256, '\ud800.jpg', 'b/' * 3000)),
    *(('categories', 'name', value) for value in ([], {}, True, float('nan'), '\ud800'))], ids=str)
def test_a_value_of_no_use_is_named_with_its_entry(name: str, key: str, value: Any, tmp_path: Path) -> None:
    file = write(tmp_path / 'f.json', changed(name, key, value))
    message = refusal(read_coco, file, error=UnusableFile)
    assert message.startswith((f'{file} has {key}=', f'{file} has width=')) and f' in {name}[0], but ' in message
    assert message.endswith(': correct it.') and len(message) < 400 and '\n' not in message


@pytest.mark.parametrize('content, words', [
    (b'<annotation>', 'is XML, but ann_file must be a JSON file'),
    (b'', 'is empty (0 bytes): put the whole file there.'), (b'\n', 'is empty (1 bytes)'),
    (b'{"images": [', 'is not JSON (Expecting value'), (json.dumps(GOOD).encode() + b'x', 'is not JSON (Extra data'),
    (gzip.compress(json.dumps(GOOD).encode()), 'is packed (gzip): unpack it.'),
    (b'[' * 10**6, 'has lists or dicts too deep inside others'),
    (b'{"images": ' + b'9' * 5000 + b'}', 'is not JSON (Exceeds the limit'),
    (json.dumps(GOOD).encode().replace(b'cat', b'\xff'), 'is not utf-8 in line 1: save it'),
    ({}, 'has no images and no categories: put a file'), ([GOOD], 'has no images and no categories'),
    (dict(GOOD, images=[]), 'has no images: put a file'),
    (dict(GOOD, images={'1': {}}), "has images={'1': {}}, but images is a list: correct it."),
    (dict(GOOD, annotations=None), 'has annotations=null, but annotations is a list: correct it.'),
    (dict(GOOD, categories=[5]), 'has 5 in categories[0], but an entry has keys and values'),
    (dict(GOOD, annotations=[None]), 'has null in annotations[0], but an entry has keys and values'),
    (changed('images', 'id', None), "has no 'id' in images[0]: add it."),
    (dict(GOOD, images=[dict(id=1, file_name='a.jpg', width=3)]),
     "has no 'height' in images[0]: add it, or let tools/misc/new_config.py write a corrected file."),
    (dict(GOOD, images=[dict(GOOD['images'][0], width=1 << 20, height=1 << 20)]),
     'has width=1048576 and height=1048576 in images[0], but OpenCV reads images of at most 1073741824 pixels')])
def test_a_file_of_no_use_is_named(content: Any, words: str, tmp_path: Path) -> None:
    file = tmp_path / 'f.json'
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    assert refusal(read_coco, str(file), error=UnusableFile).startswith(f'{file} {words}')


AS_TEXT = copy.deepcopy(GOOD)
AS_TEXT['images'][0].update(width='30', height='20')
AS_TEXT['annotations'][1].update(bbox=['1', 2, '3.0', 4], area='9', iscrowd='0',
                                 segmentation=[['1', '2', '4', '2', '4', '6'], [0, 0, 30, 0, 30, 20]])


@pytest.mark.parametrize('content, repairs', [
    (GOOD, []), (changed('images', 'width', 30.), []), (changed('annotations', 'iscrowd', None), []),
    (changed('annotations', 'iscrowd', False), []), (changed('annotations', 'ignore', None), []),
    (AS_TEXT, ["has width='30' in images[0] instead of 30", "has height='20' in images[0] instead of 20",
               "has bbox=['1', 2, '3.0', 4] in annotations[1] instead of [1, 2, 3, 4]",
               "has segmentation=[['1', '2', '4', '2', '4', '6'], [0, 0, 30, 0, 30, 20]] in annotations[1] instead of "
               '[[1, 2, 4, 2, 4, 6], [0, 0, 30, 0, 30, 20]]',
               "has area='9' in annotations[1] instead of 9", "has iscrowd='0' in annotations[1] instead of 0"]),
    (changed('annotations', 'area', None), ['has no area in annotations[0]']),
    (changed('annotations', 'image_id', '1'),
     ["has image_id='1' in annotations[0], but the id is written otherwise in images"]),
    (changed('categories', 'id', '5'), ['has category_id=5 in annotations[0], but the id is written otherwise in '
                                        'categories (and 2 more)'])])
def test_values_are_the_same_whatever_way_they_are_written(content: dict, repairs: list[str], tmp_path: Path) -> None:
    expected = copy.deepcopy(GOOD)
    for one in expected['annotations']:
        one.setdefault('iscrowd', 0)
    found = read_coco(write(tmp_path / 'f.json', content))
    for one, other in zip(found['annotations'], expected['annotations'], strict=True):
        assert {key: value for key, value in one.items() if key != 'ignore'} == other
        assert [type(number) for number in one['bbox']] == [int] * 4 or one['id'] == 3
    assert found['images'] == expected['images'] and found['categories'] == expected['categories']
    assert found.repairs == repairs


@pytest.mark.parametrize('ids', [('1', '5', '7'), (0, 0, 1), (1., 5., 7.), ('a', 'b', 'c'), (-3, '05', '5')])
def test_ids_of_any_kind_fit_together(ids: tuple, tmp_path: Path) -> None:
    image, cat, dog = ids
    coco = copy.deepcopy(GOOD)
    coco['images'][0]['id'] = image
    for one, id in zip(coco['categories'], (cat, dog), strict=True):
        one['id'] = id
    for one in coco['annotations']:
        one.update(image_id=image, category_id=cat if one['category_id'] == 5 else dog)
    found = read_coco(write(tmp_path / 'f.json', coco))
    names = {one['id']: one['name'] for one in found['categories']}
    assert [names[one['category_id']] for one in found['annotations']] == ['cat', 'dog', 'cat', 'cat']
    assert {one['image_id'] for one in found['annotations']} == {one['id'] for one in found['images']}
    assert found.repairs == []


@pytest.mark.parametrize('name, text', [(5, '5'), (5., '5'), (.5, '0.5'), ('5', '5')])
def test_names_are_text(name: Any, text: str, tmp_path: Path) -> None:
    found = read_coco(write(tmp_path / 'f.json', changed('categories', 'name', name)))
    assert found['categories'][0]['name'] == text and len(found.repairs) == (name != text)


@pytest.mark.parametrize('mask, area', [
    (None, 12), ([[0, 0, 10, 0, 10, 10]], 50), ([[0, 0, 10, 0, 10, 10], [20, 0, 30, 0, 30, 10, 20, 10]], 150),
    (dict(size=[20, 30], counts=[5, 7, 500, 88]), 95), (GOOD['annotations'][2]['segmentation'], 20), (['x'], 12)])
def test_a_missing_area_is_that_of_the_mask_or_box(mask: Any, area: float, tmp_path: Path) -> None:
    coco = copy.deepcopy(GOOD)
    coco['annotations'][1].update(area=None, segmentation=mask)
    assert read_coco(write(tmp_path / 'f.json', coco))['annotations'][1]['area'] == area


@pytest.mark.parametrize('size', [{}, dict(width=None, height=20), dict(width=0, height=0), dict(width='', height='')])
def test_a_missing_size_can_be_left_to_the_caller(size: dict, tmp_path: Path) -> None:
    file = write(tmp_path / 'f.json', dict(GOOD, images=[dict(id=1, file_name='a.jpg', **size)]))
    found = read_coco(file, needs_sizes=False)
    assert found['images'] == [dict(id=1, file_name='a.jpg')]
    assert found.repairs == ['has no width or height in images[0]']
    assert refusal(read_coco, file, error=UnusableFile)


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig', 'utf-16', 'utf-32'])
def test_other_encodings_are_read_and_told(encoding: str, tmp_path: Path) -> None:
    text = json.dumps(changed('categories', 'name', 'Küken'), ensure_ascii=False)
    (tmp_path / 'f.json').write_text(text, encoding=encoding)
    found = read_coco(str(tmp_path / 'f.json'))
    assert found['categories'][0]['name'] == 'Küken' and len(found.repairs) == (encoding != 'utf-8')


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(
    ('0', '12', '1e308', -1, 0, 1, 2, 1e308, 10**30, 'a.jpg')), lambda inner: st.lists(
    inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=6)
KEYS = [(name, key) for name, fields in FIELDS.items() for key in fields]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(KEYS), JSON, st.integers(0, 3))
def test_what_is_read_without_a_repair_is_what_mmdet_reads(tmp_path: Path, where: tuple[str, str], value: Any,
                                                           index: int) -> None:
    coco = copy.deepcopy(GOOD)
    coco[where[0]][index % len(coco[where[0]])][where[1]] = value
    file = write(tmp_path / 'f.json', coco)
    try:
        found = read_coco(file)
    except UnusableFile as error:
        assert str(error).startswith(f'{file} has ')
        return
    ids = {one['id'] for one in found['annotations']}
    if found.repairs or len(ids) < 4:
        return
    dataset = CocoDataset(ann_file=file, metainfo=dict(classes=[one['name'] for one in found['categories']]),
                          data_prefix=dict(img=''), test_mode=True)
    (tmp_path / 'again.json').write_text(json.dumps(found))
    again = CocoDataset(ann_file=str(tmp_path / 'again.json'), metainfo=dataset.metainfo, data_prefix=dict(img=''),
                        test_mode=True)
    assert [one['instances'] for one in map(dataset.get_data_info, range(len(dataset)))] == [
        one['instances'] for one in map(again.get_data_info, range(len(again)))]
