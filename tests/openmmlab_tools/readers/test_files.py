"""Each file of a folder is an image, a label or a description that is used, or it is named as left out."""
import csv
import io
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmmlab_tools.errors import UserError
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.form.files import to_patterns
from openmmlab_tools.readers.layouts import ReadingOptions
from openmmlab_tools.readers.own_data import DEFAULTS, find_data
from tests.helpers import refusal
from tests.openmmlab_tools.readers import layouts
from tests.openmmlab_tools.readers.layouts import PIXELS, XML, label_map, text
from tests.tools.conftest import save

NAMES = ('a', 'c', 'z', 'train', 'test', 'TRAIN', 'train_list', 'classes', 'labels', 'labelmap', 'data', 'a_mask',
         'a_labelTrainIds', 'README', '.hidden', 'obj', 'split', 'instances_test', '_annotations.coco', 'trainval')
SUFFIXES = ('.txt', '.csv', '.json', '.xml', '.yaml', '.png', '.jpg', '.names', '.data', '.md', '', '.tif', '.lst')
TEXTS = ('', 'hello', 'cat\ndog\n', 'a\nb\n', 'c.jpg\nd.jpg\n', 'images/train/a.jpg\n', 'x_1.jpg\nx_2.jpg\n',
         '0 0.5 0.5 0.1 0.1\n', '0001\n0002\n', '{}', '[]', '<annotation/>', '<a', 'names: [cat, dog]', 'x: 1\n',
         layouts.XML.format(name='cat'), json.dumps(layouts.coco_of('train')), 'image,split\na.jpg,test\nb.jpg,train\n',
         'filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,80,60,cat,1,1,9,9\n', 'classes = 2\nnames = x.names\n')
FOLDERS = ('', 'train', 'images', 'labels', 'annotations', 'splits', 'ImageSets/Main', 'extra', '.git', 'masks')


def files_of(root: Path) -> list[Path]:
    return [path for path in root.rglob('*') if path.is_file()]


def files_below(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in files_of(root)]


def content_of(data: LabelledData) -> Any:
    """Returns all that training gets."""
    return data.classes, {split: [(one.path, one.size, one.objects, one.label_map) for one in pictures]
                          for split, pictures in data.splits.items()}


def sentences(data: LabelledData) -> list[str]:
    return [line for line in data.notes if not re.match(r'\d+ files: ', line)]


@settings(max_examples=150)
@given(st.data())
def test_a_further_file_is_used_or_named(draw: st.DataObject) -> None:
    """In all layouts, whatever its name, suffix and text; and one that is left out changes nothing."""
    with TemporaryDirectory() as folder:
        root = Path(folder, 'data')
        draw.draw(st.sampled_from(layouts.WRITERS))(root)
        before = find_data(root)
        parents = sorted({path.parent for path in root.rglob('*')} | {root / name for name in FOLDERS})
        name = draw.draw(st.sampled_from(NAMES) | st.from_regex(r'[a-z]{1,9}', fullmatch=True))
        path = draw.draw(st.sampled_from(parents)) / (name + draw.draw(st.sampled_from(SUFFIXES)))
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in ('.png', '.tif', '.jpg') and draw.draw(st.booleans()):
            cv2.imwrite(str(path), layouts.PIXELS)
        else:
            path.write_text(draw.draw(st.sampled_from(TEXTS) | st.text(st.characters(codec='utf-8'), max_size=40)))
        check(root, path, before)


@settings(max_examples=150)
@given(st.sampled_from(layouts.WRITERS), st.integers(0, 2**30))
def test_a_fault_of_a_damaged_file_names_it(write: layouts.Write, seed: int) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder, 'data')
        write(root)
        before = {path: path.read_bytes() for path in files_of(root)}
        layouts.damage(random.Random(seed), root)
        for path in [path for path, content in before.items() if path.read_bytes() != content]:
            try:
                find_data(root)
            except UserError as error:
                # The label maps of a panoptic file, which is no annotation any more, are in a folder of its name.
                assert path.name in str(error) or f'{path.stem}/' in str(error), error


def test_a_list_of_a_split_without_images_is_named(tmp_path: Path) -> None:
    layouts.yolo(tmp_path, description='names: [cat, dog]\ntrain: train.txt\nval: images/val')
    text(tmp_path / 'train.txt', 'images/train/x.jpg\n')
    assert refusal(find_data, tmp_path).startswith(f'{tmp_path}/train.txt names no image that exists, but {tmp_path}/'
                                                   'data.yaml uses it for train: ')


def test_the_file_that_names_the_splits_is_named_beside_images_of_none(tmp_path: Path) -> None:
    layouts.yolo(tmp_path, description='')
    text(tmp_path / 'obj.names', 'cat\ndog\n')
    text(tmp_path / 'obj.data', 'names = obj.names\nvalid = images/val\n')
    assert refusal(find_data, tmp_path).count(f'2 images are in no split that {tmp_path}/obj.data names') == 1


def test_labels_that_are_skipped_because_of_one_file_are_named(tmp_path: Path) -> None:
    layouts.yolo(tmp_path)
    text(tmp_path / 'labels/val/c.txt', 'cat 0.5 0.5 0.1 0.1\n')  # a name in place of the number of a class
    [note] = [note for note in find_data(tmp_path).notes if 'unknown tool' in note]
    assert note.startswith(f'{tmp_path}/labels/val/c.txt ') and note.endswith('So all files of labels/val are skipped.')


def check(root: Path, path: Path, before: LabelledData) -> None:
    """Asserts that a file of a folder is used or named, and that all files are counted."""
    name = path.relative_to(root).as_posix()
    try:
        data = find_data(root)
    except UserError as error:
        assert '\n' not in str(error) and path.name in str(error), error
        return
    actual = data.account.files
    assert actual and sum(actual.numbers) == len(files_below(root))
    assert sorted(name for names in (*actual.used.values(), *actual.left_out.values()) for name in names) == sorted(
        files_below(root))
    if any(name in names for names in actual.left_out.values()):
        pattern = next(pattern for pattern, names in actual.left_out.items() if name in names)
        assert pattern in actual.sentence(99)
        told = [line for line in sentences(data) if line not in sentences(before)]
        assert content_of(data) == content_of(before) or any(path.name in line for line in told)


@given(st.lists(st.from_regex(r'([ab]/)?[a-z0-9_]{1,6}(_mask)?(\.(png|txt))?', fullmatch=True), unique=True,
                max_size=60))
def test_patterns_hold_each_file_once(names: list[str]) -> None:
    actual = to_patterns(names)
    assert sorted(name for own in actual.values() for name in own) == sorted(names)
    assert all(len(own) > 1 or pattern == own[0] for pattern, own in actual.items())


# Layouts in which no folder or file names a split

BOX = '<box label="{}" xtl="10" ytl="20" xbr="30" ybr="50"/>'
SHAPE = dict(label='cat', shape_type='rectangle', points=[[10, 20], [30, 50]])


def flat_coco(root: Path) -> None:
    images = [dict(id=index, file_name=f'{name}.jpg', width=80, height=60) for index, name in enumerate('abcd')]
    text(root / 'all.json', json.dumps(dict(images=images, categories=[dict(id=1, name='cat')], annotations=[
        dict(id=index, image_id=index, category_id=1, bbox=[10, 20, 20, 30]) for index in range(4)])))


def flat_cvat(root: Path) -> None:
    text(root / 'all.xml', '<annotations>' + ''.join(
        f'<image name="{name}.jpg" width="80" height="60">{BOX.format("cat")}</image>' for name in 'abcd')
        + '</annotations>')


def flat_label_studio(root: Path) -> None:
    value = dict(layouts.PERCENT, rectanglelabels=['cat'])
    text(root / 'all.json', json.dumps([dict(data=dict(image=f'{name}.jpg'), annotations=[dict(result=[dict(
        type='rectanglelabels', original_width=80, original_height=60, value=value)])]) for name in 'abcd']))


def flat_csv(root: Path) -> None:
    text(root / 'boxes.csv', 'filename,class,xmin,ymin,xmax,ymax\n' + ''.join(
        f'{name}.jpg,cat,10,20,30,50\n' for name in 'abcd'))


def flat_files(path: str, content: str) -> layouts.Write:
    def write(root: Path) -> None:
        for name in 'abcd':
            text(root / path.format(name), content)
    return write


def flat_maps(root: Path) -> None:
    for name in 'abcd':
        save(root / f'masks/{name}.png', label_map())


FLAT: dict[str, layouts.Write] = {
    'COCO': flat_coco, 'CVAT': flat_cvat, 'Label Studio': flat_label_studio, 'CSV': flat_csv, 'maps': flat_maps,
    'VOC': flat_files('annotations/{}.xml', XML.format(name='cat')), 'YOLO': flat_files(
        'labels/{}.txt', '0 0.25 0.583333 0.25 0.5'),
    'LabelMe': flat_files('images/{}.json', json.dumps(dict(shapes=[SHAPE], imagePath='', imageData=None)))}
SPLITS = dict(train='ac', val='b', test='d')


def write_flat(layout: str, root: Path) -> None:
    for name in 'abcd':
        save(root / f'images/{name}.jpg', PIXELS)
    FLAT[layout](root)


def splits_of(data: LabelledData) -> dict[str, str]:
    return {split: ''.join(picture.path.stem for picture in pictures) for split, pictures in data.splits.items()}


def as_table(names: str, split: str) -> str:
    out = io.StringIO()
    csv.writer(out).writerows([('image', 'label'), *((f'images/{name}.jpg', f'masks/{name}.png') for name in names)])
    return out.getvalue()


LISTS: dict[str, Callable[[str, str], str] | None] = {
    '{}_list.txt': lambda names, split: '\n'.join(f'images/{name}.jpg masks/{name}.png' for name in names),
    'ImageSets/Main/{1}.txt': lambda names, split: '\n'.join(names),
    'sets/{}.txt': lambda names, split: '\r\n'.join(names),
    'splits/{2}.txt': lambda names, split: '\n'.join(f'C:\\old\\images\\{name}.jpg' for name in names),
    '{3}.txt': lambda names, split: '\n'.join(f'./images/{name}.jpg' for name in names), '{}.csv': as_table,
    'splits/{}/list.txt': lambda names, split: '\n'.join(f'{name} 1' for name in names),
    'splits/all.csv': None}


@pytest.mark.parametrize('path', LISTS)
@pytest.mark.parametrize('layout', FLAT)
def test_lists_of_splits_are_read_in_each_layout(layout: str, path: str, tmp_path: Path) -> None:
    write_flat(layout, tmp_path)
    write = LISTS[path]
    if write is None:
        text(tmp_path / 'splits.csv', 'name,split\n' + '\n'.join(
            f'{name}.jpg,{split}' for split, names in SPLITS.items() for name in names))
    else:
        for split, names in SPLITS.items():
            other = dict(train='training', val='validation', test='testing')[split]
            text(tmp_path / path.format(split, split.capitalize(), split.upper(), other), write(names, split))
    data = find_data(tmp_path)
    assert splits_of(data) == SPLITS
    assert data.account.files and data.account.files.numbers[2:] == (1 if write is None else 3, 0)


@pytest.mark.parametrize('layout', FLAT)
def test_training_gets_the_images_that_no_other_list_has(layout: str, tmp_path: Path) -> None:
    write_flat(layout, tmp_path)
    text(tmp_path / 'val.txt', 'b\n')
    text(tmp_path / 'test.txt', 'd\n')
    assert splits_of(find_data(tmp_path)) == SPLITS
    text(tmp_path / 'trainval.txt', 'a\nb\n')
    data = find_data(tmp_path)
    assert splits_of(data) == dict(train='a', val='b', test='d')
    assert any('1 images are in no list of a split, such as images/c.jpg' in line for line in data.notes)


@pytest.mark.parametrize('layout', FLAT)
@pytest.mark.parametrize('content', ['x1.jpg\ny2.jpg\nz3.jpg', 'images/x1.jpg masks/x1.png\nimages/y2.jpg masks/y2.png',
                                     '2007_000001\n2007_000002'])
def test_a_list_of_other_images_is_refused(layout: str, content: str, tmp_path: Path) -> None:
    write_flat(layout, tmp_path)
    text(tmp_path / 'train.txt', content)
    first, second, *_ = content.splitlines()
    assert f'train.txt names images that are not in {tmp_path}, such as {first} and {second}: add' in refusal(
        find_data, tmp_path)


def test_text_that_names_no_images_is_no_list(tmp_path: Path) -> None:
    write_flat('VOC', tmp_path)
    text(tmp_path / 'train.txt', 'epoch 1, loss 0.3\nepoch 2, loss 0.2\n')
    data = find_data(tmp_path)
    assert sum(map(len, data.splits.values())) == 4 and data.account.files and data.account.files.left_out == {
        'train.txt': ['train.txt']}


def test_lists_in_two_folders_must_agree(tmp_path: Path) -> None:
    write_flat('VOC', tmp_path)
    for fold, names in (('fold1', 'ab'), ('fold2', 'cd')):
        text(tmp_path / f'{fold}/val.txt', '\n'.join(names))
    assert 'contain different lists for the splits: move the' in refusal(find_data, tmp_path)
    text(tmp_path / 'fold2/val.txt', 'a\nb\n')
    assert splits_of(find_data(tmp_path)) == dict(train='cd', val='ab')


def test_a_name_that_two_images_have_is_refused(tmp_path: Path) -> None:
    write_flat('VOC', tmp_path)
    save(tmp_path / 'images/more/a.jpg', PIXELS)
    text(tmp_path / 'annotations/more/a.xml', XML.format(name='cat'))
    text(tmp_path / 'train.txt', 'a\nb\n')
    assert 'names a, which can mean images/a.jpg and images/more/a.jpg: write' in refusal(find_data, tmp_path)
    text(tmp_path / 'train.txt', 'more/a\nb\n')
    assert [one.path.parent.name for one in find_data(tmp_path).splits['train']] == ['more']  # b is for validation


# Files that are no records

@pytest.mark.parametrize('layout', FLAT)
def test_images_that_no_record_names_are_left_out_by_name(layout: str, tmp_path: Path) -> None:
    write_flat(layout, tmp_path)
    for name in ('x', 'y', 'z'):
        save(tmp_path / f'unlabelled/{name}.jpg', PIXELS)
    data = find_data(tmp_path)
    assert data.account.files and data.account.files.left_out == {
        'unlabelled/*.jpg': [f'unlabelled/{name}.jpg' for name in 'xyz']}
    assert any('3 skipped: unlabelled/*.jpg (3).' in line for line in data.notes)


def left_out(root: Path, options: ReadingOptions = DEFAULTS) -> set[str]:
    actual = find_data(root, options).account.files
    assert actual
    return {*actual.left_out}


def test_a_second_kind_of_labels_is_named(tmp_path: Path) -> None:
    write_flat('maps', tmp_path)
    for name in 'abcd':
        save(tmp_path / f'masks/{name}_labelTrainIds.png', label_map(3))
    assert left_out(tmp_path) == {'masks/*_labelTrainIds.png'}
    save(tmp_path / 'images/e.jpg', PIXELS)  # its only label map is of the second kind
    save(tmp_path / 'masks/e_labelTrainIds.png', label_map(3))
    data = find_data(tmp_path)
    assert sum(map(len, data.splits.values())) == 4
    assert any('5 label maps belong to images that already have' in line for line in data.notes)


def test_trimaps_beside_xml_are_named(tmp_path: Path) -> None:
    write_flat('VOC', tmp_path)
    for name in 'abcd':
        save(tmp_path / f'annotations/trimaps/{name}.png', label_map())
    assert 'has Pascal VOC (annotations/a.xml) and label maps (annotations/trimaps/a.png)' in refusal(
        find_data, tmp_path)
    assert left_out(tmp_path, ReadingOptions(semantic=False)) == {'annotations/trimaps/*.png'}
    assert left_out(tmp_path, ReadingOptions(semantic=True)) == {'annotations/*.xml'}


def test_label_maps_without_images_and_of_another_set_are_named(tmp_path: Path) -> None:
    for name in 'abcd':
        save(tmp_path / f'JPEGImages/{name}.jpg', PIXELS)
        save(tmp_path / f'SegmentationClassAug/{name}.png', label_map())
    for name in 'abz':
        save(tmp_path / f'SegmentationClass/{name}.png', label_map())
    data = find_data(tmp_path)
    assert data.account.used['images'] == 2 and data.account.files and data.account.files.left_out.keys() == {
        'SegmentationClassAug/*.png', 'JPEGImages/*.jpg', 'SegmentationClass/z.png'}


def test_two_equal_kinds_of_labels_are_refused(tmp_path: Path) -> None:
    """DRIVE has vessels and the field of view."""
    for name in (21, 22, 23):
        save(tmp_path / f'training/images/{name}_training.tif', PIXELS)
        for path in (f'1st_manual/{name}_manual1', f'mask/{name}_training_mask'):
            save(tmp_path / f'training/{path}.png', np.where(label_map(), 255, 0).astype(np.uint8))
    assert 'has two annotation files' in refusal(find_data, tmp_path)
    for path in (tmp_path / 'training/mask').iterdir():
        path.unlink()
    assert find_data(tmp_path).account.used['images'] == 3
