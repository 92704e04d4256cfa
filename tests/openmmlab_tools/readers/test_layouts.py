"""Each layout of the table in docs/guides/own_data.md: its folder becomes a config that reads the same."""
import json
import random
import re
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from openmmlab_tools.errors import UserError
from openmmlab_tools.own_data.channels import measure_bands
from openmmlab_tools.own_data.descriptions import describe_data
from openmmlab_tools.own_data.image_sizes import fit_images
from openmmlab_tools.own_data.written_labels import write_labels
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.form.splits import split_in
from openmmlab_tools.readers.layouts import ReadingOptions
from openmmlab_tools.readers.own_data import find_data, task_for
from tests.helpers import ROOT, refusal
from tests.openmmlab_tools.readers import layouts
from tests.tools.conftest import contents, save


def read(write: layouts.Write, root: Path, **options: object) -> LabelledData:
    """Writes data into a folder and reads them; nothing is changed in it."""
    write(root)
    before = contents(root)
    data = find_data(root, ReadingOptions(**options))
    assert contents(root) == before
    return data


@pytest.mark.parametrize('are_masks, write', [
    *((False, write) for writers in layouts.BOXES.values() for write in writers),
    *((True, write) for writers in layouts.MASKS.values() for write in writers)])
def test_objects_are_read_and_written(are_masks: bool, write: layouts.Write, tmp_path: Path) -> None:
    data = read(write, tmp_path / 'data', semantic=False)
    assert set(data.splits) == {'train', 'val'} and task_for(data, None, None) == (
        'instances' if are_masks else 'boxes')
    for split, found in layouts.loaded(data, tmp_path / 'out').items():
        assert layouts.stems(data.splits[split]) == layouts.stems(found) == layouts.names_of(split)
        assert found.metainfo['classes'] == layouts.CLASSES
        for index in range(2):
            info = found.get_data_info(index)
            instance, = info['instances']
            assert Path(info['img_path']).is_file() and (info['width'], info['height']) == (80, 60)
            np.testing.assert_allclose(instance['bbox'], layouts.CORNERS, atol=0.01)
            assert instance['bbox_label'] == index and not instance['ignore_flag']
            if are_masks:
                np.testing.assert_array_equal(as_mask(instance['mask']), layouts.label_map())


def as_mask(segmentation: object) -> np.ndarray:
    if isinstance(segmentation, list):
        segmentation = coco_mask.merge(coco_mask.frPyObjects(segmentation, layouts.HEIGHT, layouts.WIDTH))
    return coco_mask.decode(segmentation)


@pytest.mark.parametrize('write', [write for writers in layouts.LABEL_MAPS.values() for write in writers])
def test_label_maps_are_read_and_named_where_they_have_classes(write: layouts.Write, tmp_path: Path) -> None:
    data = read(write, tmp_path / 'data')
    assert data.is_semantic and len(data.classes) == 2
    for split, found in layouts.loaded(data, tmp_path / 'out').items():
        assert layouts.stems(found) == layouts.names_of(split)
        np.testing.assert_array_equal(found[0]['gt_seg_map'], layouts.label_map())
        own = [one.label_map for one in data.splits[split]]
        copied = len(list((tmp_path / f'out/{split}').rglob('*.png')))
        assert copied == (2 if any(one.codes is not None for one in own) else 0)


def test_numbers_of_objects_become_masks_or_classes(tmp_path: Path) -> None:
    [[write]] = layouts.OBJECTS.values()
    data = read(write, tmp_path / 'data')
    for found in layouts.loaded(data, tmp_path / 'out').values():
        first, second = (found.get_data_info(index)['instances'] for index in range(2))
        np.testing.assert_array_equal(as_mask(first[0]['mask']), layouts.label_map())
        assert (len(first), len(second)) == (1, 2)
    assert any('is read as an object of class object. If' in line for line in data.notes)
    assert len(find_data(data.root, ReadingOptions(masks='classes')).classes) == 3


def test_the_guide_has_a_row_for_each_layout() -> None:
    guide = (ROOT / 'docs/guides/own_data.md').read_text()
    rows = set(re.findall(r'^\| ([^|]+?) \|', guide, re.MULTILINE))
    assert {*layouts.BOXES, *layouts.MASKS, *layouts.LABEL_MAPS, *layouts.OBJECTS} <= rows


def with_lonely_files(root: Path) -> None:
    layouts.voc(root)
    layouts.text(root / 'Annotations/lonely.xml', (root / 'Annotations/a.xml').read_text())
    save(root / 'JPEGImages/bare.jpg', layouts.PIXELS)
    layouts.text(root / 'Annotations/d.xml', layouts.XML.format(name='cat'))


@pytest.mark.parametrize('write, words', [
    (layouts.yolo_named('train: images/train\nval: images/val'), [
        'train: 2 images in images/train/, with 2 objects.', 'val: 2 images in images/val/, with 2 objects.',
        '1 images are in no split that ', 'such as old_export/images/z.jpg.']),
    (layouts.yolo_named('train: images/train\nval: images/train'), ['2 images are in train and val']),
    (with_lonely_files, ['1 XML files have no image', 'lonely.xml', '1 images have no XML file', 'bare.jpg',
                         'val has no object of class dog.']),
    (layouts.maps('images/{1}/{0}.jpg', 'masks/{1}/{0}.png', lambda name: np.tri(60, 80, -53, np.uint8)), [
        'the rarest is class_1 (0.58%). To give them more weight, set class_weight in model.decode_head.loss_decode.']),
    (partial(layouts.yolo, suffix='.png', pixels=np.full((layouts.HEIGHT, layouts.WIDTH), 4000, np.uint16)), [
        'Images are loaded whole, with 1 channels of uint16'])])
def test_what_became_of_the_data_is_told(write: layouts.Write, words: list[str], tmp_path: Path) -> None:
    data = read(write, tmp_path / 'data')
    lines = describe_data(data, fit_images(data, 480), measure_bands(data))
    assert all(any(one in line for line in lines) for one in words)


@pytest.mark.parametrize('write, words', [
    *((partial(layouts.yolo, description=f'names: [cat, dog]\n{description}'), words) for description, words in (
        ('train: images/nothing', 'names images/nothing for train, which does not exist'),
        ('train: {a: [b]}', 'for train, but this is a folder, a list of images'),
        ('kpt_shape: [a, b]', 'has kpt_shape '), ('names: [[cat], dog]', 'for names, but these are a list'),
        ('names: [*x]', 'is not YAML')))])
def test_faults_of_data_yaml_are_named(write: layouts.Write, words: str, tmp_path: Path) -> None:
    write(tmp_path)
    assert words in refusal(find_data, tmp_path)


def test_a_data_yaml_may_name_folders_elsewhere_and_words_are_texts(tmp_path: Path) -> None:
    layouts.yolo(tmp_path / 'elsewhere', description='')
    layouts.text(tmp_path / 'data/my.yaml', f'path: {tmp_path}/elsewhere\ntrain: images/train\n'
                 'val: ../elsewhere/images/val\nnames: {0: no, 1: 007}')
    data = find_data(tmp_path / 'data/my.yaml')
    assert [layouts.stems(data.splits[split]) for split in ('train', 'val')] == [['a', 'b'], ['c', 'd']]
    actual = layouts.loaded(data, tmp_path / 'out')['train']
    assert len(actual.get_data_info(0)['instances']) == 1 and actual.metainfo['classes'] == ('no', '007')
    assert Path(actual.get_data_info(0)['img_path']).is_file()


def test_links_are_followed_circles_end_and_hidden_files_are_no_data(tmp_path: Path) -> None:
    layouts.voc(tmp_path / 'real')
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data/link').symlink_to(tmp_path / 'real')
    (tmp_path / 'real/JPEGImages/circle').symlink_to(tmp_path / 'real')
    (tmp_path / 'real/JPEGImages/nowhere.jpg').symlink_to('nothing.jpg')
    for place in ('.ipynb_checkpoints/z', 'JPEGImages/._a', '__MACOSX/JPEGImages/z'):
        save(tmp_path / f'real/{place}.jpg', layouts.PIXELS)
    layouts.text(tmp_path / 'real/Annotations/.hidden.xml', 'nothing')
    data = find_data(tmp_path / 'data')
    assert layouts.stems(data.splits['train']) == ['a', 'b']
    assert any('1 links lead nowhere' in line for line in data.notes)


@pytest.mark.parametrize('name, split', [
    ('latest', ''), ('train2017', 'train'), ('instances_val', 'val'), ('TestImages', 'test'), ('trainval', 'train'),
    ('train-test', ''), ('evaluation', '')])
def test_a_split_is_a_whole_word(name: str, split: str) -> None:
    assert split_in(name) == split


def test_a_file_that_is_named_is_for_training(tmp_path: Path) -> None:
    layouts.coco(tmp_path)
    data = find_data(tmp_path / 'annotations/instances_val2017.json', val='0.5')
    assert sorted(layouts.stems(data.splits['train']) + layouts.stems(data.splits['val'])) == ['c', 'd']


def test_oriented_boxes_are_clipped_at_the_border(tmp_path: Path) -> None:
    """A square that stands on a corner, half of it outside."""
    data = read(lambda root: layouts.yolo(root, '{label} 0 0.25 0.25 0.5 0 0.75 -0.25 0.5'), tmp_path)
    mask, = data.splits['train'][0].objects[0].keys['segmentation']
    np.testing.assert_allclose(np.reshape(mask, (-1, 2)), [(0, 15), (20, 30), (0, 45)], atol=1e-2)


def test_colours_that_no_table_has_mean_no_class(tmp_path: Path) -> None:
    data = read(layouts.maps('images/{1}/{0}.jpg', 'masks/{1}/{0}.png', layouts.coloured, 'classes.txt',
                             'sky 0 0 0\nsea 9 9 9'), tmp_path / 'data')
    assert any('1 colours of label maps are not in classes.txt, such as (200, 30, 10)' in line for line in data.notes)
    actual = layouts.loaded(data, tmp_path / 'out')['val']
    assert np.unique(actual[0]['gt_seg_map']).tolist() == [0, 255]
    assert actual.metainfo['palette'] == [(0, 0, 0), (9, 9, 9)]


@pytest.mark.parametrize('has_images_of_one_id', [False, True])
def test_coco_without_unique_ids_loses_no_object(has_images_of_one_id: bool, tmp_path: Path) -> None:
    """Annotations may have one id; of images of one id, the last gets the objects."""
    def change(split: str, content: dict) -> None:
        for entry in [*content['annotations'], *(content['images'] if has_images_of_one_id else ())]:
            entry['id'] = 1
        if has_images_of_one_id:
            content['annotations'][1]['image_id'] = 1

    data = read(partial(layouts.coco, change=change), tmp_path / 'data')
    counts = [len(one['instances']) for one in map(
        layouts.loaded(data, tmp_path / 'out')['train'].get_data_info, range(2))]
    assert counts == ([0, 2] if has_images_of_one_id else [1, 1])
    assert any('1 images with the same id as another' in line for line in data.notes) == has_images_of_one_id


def test_a_hundred_thousand_annotations_take_seconds(tmp_path: Path) -> None:
    layouts.coco(tmp_path, change=lambda split, content: content.update(annotations=[
        dict(content['annotations'][0], id=index, bbox=[index / 2000, 20, 20, 30])
        for index in range(100_000 if split == 'train' else 1)]))
    begin = time.process_time()
    data = find_data(tmp_path)
    write_labels(tmp_path / 'out', data)
    assert len(data.splits['train'][0].objects) == 100_000 and time.process_time() - begin < 20


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(10))
def test_damaged_files_end_in_a_result_or_a_sentence(seed: int, tmp_path: Path) -> None:
    """In each layout, a few words or bytes of a file are others."""
    draw = random.Random(seed)
    for index, write in enumerate(layouts.WRITERS):
        root = tmp_path / str(index)
        write(root)
        layouts.damage(draw, root)
        try:
            find_data(root)
        except UserError as error:
            assert '\n' not in str(error)


def test_areas_that_cannot_be_right_are_corrected(tmp_path: Path) -> None:
    layouts.coco(tmp_path, change=lambda split, content: [one.update(area=0.02) for one in content['annotations']])
    data = find_data(tmp_path)
    written = json.loads((tmp_path / 'out' / write_labels(tmp_path / 'out', data)['train']['ann_file']).read_text())
    assert {annotation['area'] for annotation in written['annotations']} == {600}
    assert any('instances_train2017.json has an impossible area in ' in note for note in data.notes)
