"""Every record of a source is used or left out for a reason, an image has one name, and odd numbers are told."""
import base64
import csv
import itertools
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from openmmlab_tools.errors import UserError
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.layouts import ReadingOptions
from openmmlab_tools.readers.own_data import find_data
from tests.helpers import ROOT, refusal
from tests.openmmlab_tools.readers import layouts
from tests.openmmlab_tools.readers.layouts import PIXELS, POLYGON, text
from tests.tools.conftest import save

SEEN = re.compile(r'^(\d+|none) of \d+ (images|objects) are used')
BOX = '<box label="{}" xtl="10" ytl="20" xbr="30" ybr="50"/>'


def names_of(data: LabelledData) -> dict[str, list[str]]:
    """Returns the classes of the objects of each image."""
    return {data_name(data, one.path): [other.name for other in one.objects]
            for pictures in data.splits.values() for one in pictures}


def data_name(data: LabelledData, path: Path) -> str:
    return path.relative_to(data.root).as_posix()


def says(data: LabelledData, words: str) -> bool:
    return any(words in line for line in data.notes)


@pytest.mark.parametrize('write', layouts.WRITERS)
def test_nothing_of_any_layout_is_lost(write: layouts.Write, tmp_path: Path) -> None:
    check_account(write, tmp_path)


def check_account(write: layouts.Write, tmp_path: Path) -> list[str]:
    """Writes a folder, asserts that no record of it is lost, and returns its account."""
    write(tmp_path)
    data = find_data(tmp_path)
    assert data.account.seen['images'] >= 4 and data.account.seen['objects'] >= 4 * (not data.is_semantic)
    assert [data.account.lost(what) for what in ('images', 'objects')] == [0, 0]
    assert SEEN.match(data.notes[0]) and not says(data, 'are lost')
    assert [key for key in data.account.fields if not key.startswith(('segments', 'score', 'keypoints'))] == []
    return [*data.account.lines()]


def changed(path: Path, draw: st.DataObject) -> bytes:
    """Drops, doubles or renames a record of a file."""
    content = path.read_text()
    record = {'.xml': r'<(image|object)\b[\s\S]*?</\1>', '.txt': r'.+\n?', '.csv': r'.+\n?',
              '.json': r'\{[^{}]*\}'}[path.suffix]
    found = [*re.finditer(record, content)]
    if not found:
        return content.encode()
    one = draw.draw(st.sampled_from(found))
    new = draw.draw(st.sampled_from(
        ['', one[0] * 2, re.sub(r'\b[abcd]\b', 'z', one[0]), one[0].replace('cat', 'Cat ')]))
    if path.suffix == '.json':
        new = new.replace('}{', '},{') or '{}'
    return (content[:one.start()] + new + content[one.end():]).encode()


@settings(max_examples=100)
@given(st.data())
def test_nothing_is_lost_when_records_are_dropped_doubled_or_renamed(draw: st.DataObject) -> None:
    writers = [write for table in (layouts.BOXES, layouts.MASKS) for some in table.values() for write in some]
    with TemporaryDirectory() as folder:
        root = Path(folder)
        draw.draw(st.sampled_from(writers))(root)
        paths = [path for path in sorted(root.rglob('*')) if path.suffix in ('.xml', '.json', '.txt', '.csv')
                 and path.stat().st_size]
        path = draw.draw(st.sampled_from(paths))
        path.write_bytes(changed(path, draw))
        try:
            data = find_data(root)
        except UserError as error:
            assert '\n' not in str(error)
            return
        assert [data.account.lost(what) for what in ('images', 'objects')] == [0, 0], data.notes
        assert all(any(f' of {data.account.seen[kind]} {kind} are used' in line for line in data.notes)
                   for kind in ('images', 'objects') if data.account.seen[kind])


# One name, one image

def two_cvat_tasks(root: Path, second: str = BOX.format('dog').replace('10', '12'), size: int = 80) -> None:
    layouts.cvat(BOX)(root)
    whole = (root / 'annotations.xml').read_text()
    text(root / 'more.xml', re.sub(r'<box [^>]*/>', second, whole).replace('width="80"', f'width="{size}"'))


def two_imports(root: Path) -> None:
    layouts.label_studio('rectanglelabels', layouts.PERCENT)(root)
    tasks = json.loads((root / 'project-1.json').read_text())
    again = json.loads(json.dumps(tasks).replace('0123abcd-', '89abcdef-').replace('"y": 33', '"y": 30'))
    text(root / 'project-1.json', json.dumps([*tasks, *again]))


@pytest.mark.parametrize('write', [two_cvat_tasks, two_imports])
def test_two_records_of_an_image_are_joined(write: layouts.Write, tmp_path: Path) -> None:
    write(tmp_path)
    data = find_data(tmp_path)
    assert data.account.used == dict(images=8, objects=8) and [len(one) for one in names_of(data).values()] == [2] * 4


def test_what_is_said_twice_counts_once_and_contradictions_are_refused(tmp_path: Path) -> None:
    two_cvat_tasks(tmp_path / 'same', BOX.format('cat'))
    assert 'has two records. At [10.0, 20.0, 20.0, 30.0], ' in refusal(find_data, tmp_path / 'same')
    text(tmp_path / 'same/more.xml', (tmp_path / 'same/annotations.xml').read_text())
    data = find_data(tmp_path / 'same')
    assert data.account.used['objects'] == 4 and says(data, '4 objects are said twice about one image, such as a.jpg')
    two_cvat_tasks(tmp_path / 'sizes', size=90)
    assert 'has (80, 60) pixels in ' in refusal(find_data, tmp_path / 'sizes')


def cameras(images: list[str], names: list[str], file: str = 'annotations.xml') -> layouts.Write:
    def write(root: Path) -> None:
        for name in images:
            save(root / name, PIXELS)
        text(root / file, '<annotations>' + ''.join(
            f'<image id="{index}" name="{name}" width="80" height="60">{BOX.format(f"class{index}")}</image>'
            for index, name in enumerate(names)) + '</annotations>')
    return write


@pytest.mark.parametrize('images, names, file, expected', [
    (['cam1/0.png', 'cam1/1.png'], ['cam1/0.png', 'cam2/0.png', 'cam2/1.png'], 'annotations.xml',
     {'cam1/0.png': 'class0'}),
    (['cam1/0.png', 'x/9.png'], ['cam2/0.png', 'x/9.png'], 'annotations.xml', {'x/9.png': 'class1'}),
    (['video1/0.png', 'video2/0.png'], ['0.png'], 'video2/video2.xml', {'video2/0.png': 'class0'}),
    (['video1/0.png', 'video2/1.png'], ['0.png', '1.png'], 'video2/video2.xml', {'video2/1.png': 'class1'}),
    (['train/0.png', 'all/9.png'], ['val/0.png', '9.png'], 'annotations.xml', {'all/9.png': 'class1'}),
    (['a/0.png', 'b/0.png', 'b/1.png'], ['0.png', '1.png'], 'annotations.xml', {'b/1.png': 'class1'}),
    (['img/0.png'], ['C:\\old\\0.png'], 'annotations.xml', {'img/0.png': 'class0'})])
def test_a_path_means_an_image_of_its_own_in_no_other_folder(
        images: list[str], names: list[str], file: str, expected: dict[str, str], tmp_path: Path) -> None:
    save(tmp_path / 'spare/other.png', PIXELS)
    cameras(images, names, file)(tmp_path)
    text(tmp_path / 'spare/annotations.xml', f'<annotations><image name="other.png" width="80" height="60">'
         f'{BOX.format("other")}</image></annotations>')
    found = names_of(find_data(tmp_path))
    assert found == {**{image: [name] for image, name in expected.items()}, 'spare/other.png': ['other']}


def test_two_paths_that_may_both_mean_an_image_are_refused(tmp_path: Path) -> None:
    cameras(['0.png'], ['left/0.png', 'right/0.png'])(tmp_path)
    assert 'left/0.png and right/0.png, but the only file for both is 0.png: put' in refusal(find_data, tmp_path)


def test_coco_takes_the_images_beside_it_also_if_another_folder_has_more(tmp_path: Path) -> None:
    for name in ('video1/0', 'video1/1', 'video1/2', 'video2/frames/0', 'video2/frames/1'):
        save(tmp_path / f'{name}.png', PIXELS)
    text(tmp_path / 'video2/video2.json', json.dumps(dict(
        images=[dict(id=index, file_name=f'{index}.png', width=80, height=60) for index in range(3)],
        categories=[dict(id=1, name='cat')],
        annotations=[dict(id=index, image_id=index, category_id=1, bbox=[1, 1, 9, 9]) for index in range(3)])))
    data = find_data(tmp_path / 'video2/video2.json'.replace('video2.json', ''))
    assert data.account.used['images'] == 2
    data = find_data(tmp_path)
    assert sorted(names_of(data)) == ['video2/frames/0.png', 'video2/frames/1.png']
    assert says(data, '1 images of video2.json are not there, such as 2.png')


# Numbers that cannot be, and conventions of tools

@pytest.mark.parametrize('line, words', [
    ('{} 0.375 0.5 0.25 0.5 0.3 0.4 2 0.4 0.5 2', 'looks like a box with 2 keypoints of three numbers: write kpt'),
    ('{} 0.375 0.5 0.25 0.5 0.3 0.4 1 0.4 0.5 0 0.4 0.6 1', 'with 3 keypoints'),
    ('{} 20 35 20 30', '35 looks like pixels: divide them'), ('{} 0.5 0.5 1.3 0.5', '1.3 looks too large'),
    ('{} 0.1 0.1 0.2 0.1 0.2 0.2 0.1', 'at least three pairs of numbers for a polygon'),
    ('{} 0.5 0.5 -0.2 0.5', 'a width or height is not below 0'), ('{} 0.5 0.5 0.1', 'four numbers for a box'),
    ('cat{} 0.5 0.5 0.1 0.1', 'an unknown tool (four numbers and a class)')])
def test_numbers_of_yolo_that_cannot_be_are_refused(line: str, words: str, tmp_path: Path) -> None:
    layouts.yolo(tmp_path, line=line.replace('{}', '{label}'))
    assert words in refusal(find_data, tmp_path)


def typo(root: Path) -> None:
    layouts.yolo(root)
    text(root / 'labels/train/typo.txt', '0 0.5 0.5 0.1 0.1')


def swapped(root: Path) -> None:
    layouts.voc(root, xml=layouts.XML.replace('<xmin>11', '<xmin>30').replace('<xmax>30', '<xmax>11'))


def coco_with(change: Callable[[dict[str, Any]], object]) -> layouts.Write:
    return partial(layouts.coco, change=lambda split, content: change(content))


def annotation(**values: Any) -> layouts.Write:
    return coco_with(lambda content: content['annotations'][0].update(values))


@pytest.mark.parametrize('write, words', [
    (typo, '1 txt files have no image of their own, such as '),
    (swapped, '4 boxes have their corners swapped and are read the other way round'),
    (annotation(bbox=[20, 20, 0, 10]), '2 objects are smaller than a pixel'),
    (coco_with(lambda content: content['images'][0].update(width=160)), 'have another size than their annotation'),
    (annotation(segmentation=[[10, 20, 20, 30]]), 'segmentation with polygons of fewer than three points (2)'),
    (annotation(keypoints=[1, 2, 2], num_keypoints=1), 'not read: keypoints (2), num_keypoints (2)'),
    (coco_with(lambda content: content['categories'][1].update(name='Cat')), 'Classes differ by case only: cat, Cat.'),
    (partial(layouts.voc, xml=layouts.XML.replace('<bndbox>', '<weather>rain</weather><bndbox>')),
     'not read: object/weather (4)'),
    (layouts.labelme(layouts.shape('polygon', POLYGON, holes=[])), 'not read: shapes.holes (4)'),
    (layouts.label_studio('rectanglelabels', dict(layouts.PERCENT, odd=1)), '4 of 16 objects are used')])
def test_what_is_odd_is_told_with_its_number(write: layouts.Write, words: str, tmp_path: Path) -> None:
    write(tmp_path)
    assert says(find_data(tmp_path), words)


def test_names_that_differ_by_blanks_are_one_class(tmp_path: Path) -> None:
    coco_with(lambda content: content['categories'].append(dict(id=3, name='cat ')) or content['annotations'][0].update(
        category_id=3))(tmp_path)
    assert find_data(tmp_path).classes == ['cat', 'dog']


def test_deleted_and_ignored_objects_are_left_out(tmp_path: Path) -> None:
    two = layouts.XML.replace('</annotation>', '<object><name>cat</name><deleted>1</deleted><bndbox><xmin>1</xmin>'
                              '<ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>')
    layouts.voc(tmp_path / 'voc', xml=two)
    assert says(find_data(tmp_path / 'voc'), '4 of 8 objects are used; skipped: 4 objects are deleted')
    layouts.labelme(lambda name: [dict(label=one, points=POLYGON, shape_type='polygon') for one in (name, '__ignore__')]
                    )(tmp_path / 'labelme')
    data = find_data(tmp_path / 'labelme')
    assert data.classes == ['cat', 'dog'] and says(data, '4 objects are called __ignore__')


def test_a_group_is_one_object(tmp_path: Path) -> None:
    """Masks, polygons and rectangles in LabelMe, and shapes in CVAT."""
    parts = [dict(layouts.MASK('cat')[0], group_id=1),
             dict(label='cat', shape_type='rectangle', points=[[40, 20], [50, 50]], group_id=1),
             dict(label='cat', shape_type='polygon', points=POLYGON, group_id=2),
             dict(label='cat', shape_type='polygon', points=(np.array(POLYGON) + 30).tolist(), group_id=2)]
    layouts.labelme(lambda name: parts)(tmp_path / 'labelme')
    group, shapes = find_data(tmp_path / 'labelme').splits['train'][0].objects
    assert group.records == shapes.records == 2 and len(shapes.keys['segmentation']) == 2
    assert group.keys['area'] == 600 + 300 and group.keys['bbox'] == [10, 20, 40, 30]
    box = BOX.replace('<box', '<box group_id="3"').replace('{}', 'cat')
    layouts.cvat(box + box.replace('10', '40').replace('30', '50') + BOX)(tmp_path / 'cvat')
    first, own = find_data(tmp_path / 'cvat').splits['train'][0].objects
    assert (first.keys['bbox'], first.records, own.keys['bbox']) == ([10, 20, 40, 30], 2, [10, 20, 20, 30])


def test_the_subsets_of_a_cvat_project_are_folders_and_splits(tmp_path: Path) -> None:
    for subset, size in (('Train', 0), ('Validation', 1)):
        save(tmp_path / f'images/{subset}/0.png', PIXELS + np.uint8(size))
    text(tmp_path / 'annotations.xml', '<annotations>' + ''.join(
        f'<image name="0.png" subset="{subset}" width="80" height="60">{BOX.format("cat")}</image>'
        for subset in ('Train', 'Validation')) + '</annotations>')
    data = find_data(tmp_path)
    assert {split: data_name(data, one.path) for split, (one,) in data.splits.items()} == dict(
        train='images/Train/0.png', val='images/Validation/0.png')


def test_label_studio_has_images_under_any_key_and_labels_beside_shapes(tmp_path: Path) -> None:
    def task(index: int, labels: list[str]) -> dict[str, Any]:
        save(tmp_path / f'{index}.png', PIXELS)
        both = dict(id='r', original_width=80, original_height=60, to_name='image')
        return dict(id=40 + index, data=dict(title='none', scan=f's3://bucket/{index}.png'), annotations=[dict(result=[
            dict(both, type='rectangle', from_name='box', value=layouts.PERCENT),
            *(dict(both, type='labels', from_name='kind', value=dict(labels=[one])) for one in labels)])])

    text(tmp_path / 'project.json', json.dumps([task(0, ['cat']), task(1, ['cat']), task(2, [])]))
    data = find_data(tmp_path)
    assert sorted(names_of(data).values()) == [[], ['cat'], ['cat']]
    assert says(data, '1 objects are regions without a label, such as ') and says(data, 'task 42')


# Files

CSVS = dict(
    tensorflow=('filename,width,height,class,xmin,ymin,xmax,ymax\n', '{}.jpg,80,60,{},10,20,30,50\n'),
    retinanet=('', 'images/{}.jpg,10,20,30,50,{}\n'),
    open_images=('ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded\n',
                 '{},x,{},1,0.125,0.375,0.33333333,0.83333333,0\n'),
    makesense=('', '{1},10,20,20,30,{0}.jpg,80,60\n'),
    via=('filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes\n',
         '{}.jpg,9,"{{}}",1,0,"{{""name"":""rect"",""x"":10,""y"":20,""width"":20,""height"":30}}","{{""kind"":""{}""}}"\n'),
    vott=('"image","xmin","ymin","xmax","ymax","label"\n', '"{}.jpg",10.0,20.0,30.0,50.0,"{}"\n'))


def csv_boxes(root: Path, name: str = 'tensorflow') -> None:
    head, line = CSVS[name]
    for _, _, stem, _ in layouts.samples():
        save(root / f'images/{stem}.jpg', PIXELS)
    text(root / 'boxes.csv', head + ''.join(line.format(stem, kind) for _, kind, stem, _ in layouts.samples()))


@pytest.mark.parametrize('name', CSVS)
def test_boxes_are_read_from_csv_files(name: str, tmp_path: Path) -> None:
    csv_boxes(tmp_path, name)
    data = find_data(tmp_path, val='0.5')
    assert data.classes == ['cat', 'dog'] and data.account.used == dict(images=4, objects=4) and not data.account.fields
    assert find_data(tmp_path / 'boxes.csv', val='0.5').account.used == data.account.used
    for pictures in data.splits.values():
        for one in pictures:
            np.testing.assert_allclose(one.objects[0].keys['bbox'], [10, 20, 20, 30], atol=0.01)


def test_a_csv_beside_another_format_is_left_out(tmp_path: Path) -> None:
    layouts.coco(tmp_path)
    text(tmp_path / 'boxes.csv', CSVS['tensorflow'][0] + 'a.jpg,80,60,cat,1,1,9,9\n')
    assert says(find_data(tmp_path), '1 CSV files are skipped, because there are COCO annotations')
    text(tmp_path / 'odd.csv', 'a,b\n1,2\n')
    assert 'has no columns of boxes (image, name, left' in refusal(find_data, tmp_path / 'odd.csv')


def cityscapes(*kinds: str) -> layouts.Write:
    def write(root: Path) -> None:
        for split, frame in itertools.product(('train', 'val'), (19, 20)):
            name = f'{split}/town/{split}_000000_0000{frame}'
            save(root / f'leftImg8bit/{name}_leftImg8bit.png', PIXELS)
            for kind in kinds:
                value = dict(labelIds=26, labelTrainIds=13).get(kind, 99)
                save(root / f'gtFine/{name}_gtFine_{kind}.png', layouts.label_map(value, 255 if 'Train' in kind else 0))
            text(root / f'gtFine/{name}_gtFine_polygons.json', '{"imgHeight": 60, "objects": []}')
    return write


@pytest.mark.parametrize('kinds', [
    ('labelIds', 'instanceIds', 'color'), ('labelIds', 'labelTrainIds'), ('labelTrainIds',)])
def test_cityscapes_is_read_as_it_is(kinds: tuple[str, ...], tmp_path: Path) -> None:
    cityscapes(*kinds)(tmp_path)
    data = find_data(tmp_path)
    assert len(data.classes) == 19 and set(data.splits) == {'train', 'val'}
    label_map = data.splits['train'][0].label_map
    assert label_map is not None and data.classes[max(label_map.pixels)] == 'car'


def maps_of(values: dict[str, np.ndarray], suffix: str = '.png') -> layouts.Write:
    return layouts.maps('images/{1}/{0}.jpg', f'masks/{{1}}/{{0}}{suffix}', lambda name: values.get(name, values['a']))


@pytest.mark.parametrize('suffix', ['.jpg', '.png', '.gif'])
def test_masks_of_two_values_are_found_file_by_file(suffix: str, tmp_path: Path) -> None:
    other = layouts.label_map(1 if suffix == '.png' else 255)
    maps_of(dict(a=other, b=layouts.label_map(255)), suffix.replace('gif', 'png'))(tmp_path / 'data')
    for path in (tmp_path / 'data/masks').rglob('*.png') if suffix == '.gif' else ():
        image = Image.fromarray((np.asarray(Image.open(path)) == 0).astype(np.uint8))
        image.putpalette([255, 255, 255, 0, 0, 0])  # white is 0
        image.save(path.with_suffix(suffix))
        path.unlink()
    data = find_data(tmp_path / 'data', ReadingOptions(True))
    assert data.classes == ['background', 'foreground'] and len(data.splits['train']) == 2
    for found in layouts.loaded(data, tmp_path / 'out').values():
        np.testing.assert_array_equal(found[0]['gt_seg_map'], layouts.label_map())


@pytest.mark.parametrize('suffix, pixels, words', [
    ('.png', cv2.GaussianBlur(layouts.label_map(255), (5, 5), 1), 'look like masks of two values that were resized'),
    ('.jpg', np.tile(np.arange(0, 240, 3, np.uint8), (60, 1)), 'is a JPEG or GIF file, which may have two values only'),
    ('.png', layouts.label_map(1).astype(np.uint16) * 26001, 'as in KITTI and MOTS: convert')])
def test_label_maps_of_other_values_are_refused(suffix: str, pixels: np.ndarray, words: str, tmp_path: Path) -> None:
    maps_of(dict(a=pixels), suffix)(tmp_path)
    assert words in refusal(find_data, tmp_path, ReadingOptions(True, 'classes' if pixels.dtype == np.uint16 else None))


def test_images_that_only_labelme_holds_are_written_beside_the_config(tmp_path: Path) -> None:
    root, images = tmp_path / 'data', tmp_path / 'out_images'
    layouts.labelme(layouts.shape('rectangle', [[10, 20], [30, 50]]))(root)
    for image in root.rglob('*.jpg'):
        path = image.with_suffix('.json')
        held = dict(json.loads(path.read_text()), imageData=base64.b64encode(image.read_bytes()).decode())
        text(path, json.dumps(held))
        image.rename(image.with_suffix('.bak'))
    assert 'has no images' in refusal(find_data, root)
    data = find_data(root, ReadingOptions(embedded=images))
    assert [len(data.splits[split]) for split in ('train', 'val')] == [2, 2] and data.account.used['images'] == 4
    assert (images / 'train/a.jpg').read_bytes() == (root / 'train/a.bak').read_bytes()
    for found in layouts.loaded(data, tmp_path / 'out').values():
        assert Path(found.get_data_info(0)['img_path']).is_file()
    both = find_data(root / 'train', ReadingOptions(embedded=tmp_path / 'two'), val=str(root / 'val'))
    assert {one.path.parent.name for pictures in both.splits.values() for one in pictures} == {
        'two', 'two_val'}
    text(path, json.dumps(dict(held, imageData='bm8=')))
    assert 'has an imageData that is no image' in refusal(find_data, root, ReadingOptions(embedded=tmp_path / 'other'))


def test_names_in_files_count_where_their_own_say_nothing_and_gbk_is_read(tmp_path: Path) -> None:
    layouts.voc(tmp_path / 'voc')
    xml = tmp_path / 'voc/Annotations/b.xml'
    named = layouts.XML.replace('<size>', '<filename>b.jpg</filename><size>').format(name='狗')
    (tmp_path / 'voc/Annotations/other.xml').write_bytes(
        f'<?xml version="1.0" encoding="GBK"?>{named}'.encode('gbk'))
    xml.unlink()
    assert names_of(find_data(tmp_path / 'voc'))['JPEGImages/b.jpg'] == ['狗']
    xml.write_bytes(named.encode('gbk'))
    assert 'is not UTF-8, perhaps GBK: save it as UTF-8' in refusal(find_data, tmp_path / 'voc')
    layouts.labelme(layouts.shape('polygon', POLYGON))(tmp_path / 'labelme')
    (tmp_path / 'labelme/train/a.json').rename(tmp_path / 'labelme/train/task_7.json')
    assert names_of(find_data(tmp_path / 'labelme'))['train/a.jpg'] == ['cat']


# The table of the guide

WRITERS = {'CSV': csv_boxes, 'Cityscapes': cityscapes('labelIds', 'labelTrainIds', 'instanceIds'), **{
    name: writers[0] for table in reversed(layouts.TABLES) for name, writers in table.items()}}
ACCOUNTS = dict(csv.reader((ROOT / 'docs/guides/accounts.csv').read_text().splitlines()))


@pytest.mark.parametrize('layout', WRITERS)
def test_the_guide_has_the_account_of_each_layout(layout: str, tmp_path: Path) -> None:
    """The row of accounts.csv is what one folder of the layout says, without names of files."""
    account = ' '.join(check_account(WRITERS[layout], tmp_path))
    assert ACCOUNTS[layout] == re.sub(r', such as [^;]+?(?=;|\.( |$))', '', account)
