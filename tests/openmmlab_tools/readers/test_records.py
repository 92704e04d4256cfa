"""Records are read as they are: nothing is chosen, doubled, clipped, shifted or ignored without a sentence."""
import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmmlab_tools.own_data.measuring import MOST_ROWS, to_table
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.form.settling import MOST_OUTSIDE
from openmmlab_tools.readers.layouts import ReadingOptions
from openmmlab_tools.readers.own_data import about_masks, find_data, task_for
from tests.helpers import refusal
from tests.openmmlab_tools.readers import layouts
from tests.openmmlab_tools.readers.box_layouts import WRITERS, change_records
from tests.openmmlab_tools.readers.layouts import PERCENT, PIXELS, POLYGON, label_map, text
from tests.openmmlab_tools.readers.test_account import says
from tests.tools.conftest import save

CORNERS = (10., 20., 30., 50.)  # of an object in an image of 80 x 60 pixels


def boxes_of(data: LabelledData) -> list[list[float]]:
    return [one.keys['bbox'] for pictures in data.splits.values() for picture in pictures for one in picture.objects]


each_layout = pytest.mark.parametrize('layout', WRITERS)


@each_layout
def test_an_object_that_is_said_twice_counts_once(layout: str, tmp_path: Path) -> None:
    WRITERS[layout](tmp_path, [CORNERS, (40, 20, 60, 50), CORNERS])
    data = find_data(tmp_path)
    assert data.account.used['objects'] == 8 and len(boxes_of(data)) == 8
    assert says(data, '4 objects are said twice about one image, such as ')


@each_layout
def test_boxes_beyond_the_border_are_told_with_the_largest_excess(layout: str, tmp_path: Path) -> None:
    WRITERS[layout](tmp_path, [CORNERS, (-4, 20, 30, 50), (40, 20, 80.4, 50)])
    data = find_data(tmp_path)
    assert data.account.used['objects'] == 12
    line, = (line for line in data.notes if 'beyond the border' in line)
    assert line.startswith('4 objects reach beyond the border of their image, by up to 4.0 pixels, and are clipped')


@each_layout
def test_boxes_more_than_half_outside_are_left_out_or_refused_if_they_are_many(layout: str, tmp_path: Path) -> None:
    outside = (76, 20, 85, 50)
    inside = [(float(x), 20., x + 10., 50.) for x in range(20)]
    assert 1 / (len(inside) + 1) < MOST_OUTSIDE
    WRITERS[layout](tmp_path / 'few', [*inside, outside])
    data = find_data(tmp_path / 'few')
    assert data.account.used['objects'] == 80 and says(data, '4 objects lie more than half outside of their image')
    WRITERS[layout](tmp_path / 'many', [CORNERS, outside])
    message = refusal(find_data, tmp_path / 'many')
    assert message.startswith('4 of 8 objects lie more than half outside') and '(76, 20) to (85, 50)' in message


@settings(max_examples=60)
@given(st.sampled_from([*WRITERS]), st.integers(0, 2**30))
def test_no_record_changes_silently(layout: str, seed: int) -> None:
    with TemporaryDirectory() as folder:
        change_records(random.Random(seed), layout, Path(folder))


def test_polygons_beyond_the_border_are_told(tmp_path: Path) -> None:
    points = [[x - 14, y] for x, y in POLYGON]
    layouts.labelme(lambda name: [dict(label='cat', points=points, shape_type='polygon')])(tmp_path)
    data = find_data(tmp_path)
    assert says(data, '4 objects reach beyond the border of their image, by up to 4.0 pixels')
    assert boxes_of(data) == [[0, 20, 16, 30]] * 4


def test_a_mask_beyond_the_border_keeps_its_place(tmp_path: Path) -> None:
    shape = layouts.MASK('cat')[0] | dict(points=[[-5, 20], [14, 49]])
    layouts.labelme(lambda name: [shape])(tmp_path)
    assert boxes_of(find_data(tmp_path)) == [[0, 20, 15, 30]] * 4


# COCO


@pytest.mark.parametrize('isthing, words', [
    (0, 'skipped: 4 objects are segments of stuff (isthing is 0), such as sky'),
    (None, '4 segments have a category without isthing and are taken for objects')])
def test_segments_of_stuff_are_in_the_account(isthing: int | None, words: str, tmp_path: Path) -> None:
    layouts.coco_panoptic(tmp_path)
    for path in (tmp_path / 'annotations').glob('*.json'):
        content = json.loads(path.read_text())
        for category in content['categories']:
            if category['name'] == 'sky' and isthing is None:
                del category['isthing']
        path.write_text(json.dumps(content))
    data = find_data(tmp_path)
    assert says(data, ' of 8 objects are used') and says(data, words)
    assert ('sky' in data.classes) == (isthing is None)


def test_objects_without_a_mask_are_named_with_both_remedies(tmp_path: Path) -> None:
    def change(split: str, content: dict[str, Any]) -> None:
        for annotation in content['annotations']:
            annotation['segmentation'] = [np.ravel(POLYGON).tolist()]
        if split == 'train':
            del content['annotations'][0]['segmentation']

    layouts.coco(tmp_path / 'data', change)
    data = find_data(tmp_path / 'data')
    assert task_for(data, None, None) == 'boxes'
    line, = about_masks(data, 'boxes')
    assert line.startswith('3 of 4 objects have a mask, but the task is boxes, because 1 have none, such as one of a.')
    assert 'give these a mask, or remove them' in line
    assert '(1 of 4 objects have no mask, such as one of a.jpg)' in refusal(task_for, data, 'instances', None)


# Label Studio

def studio(*results: list[dict[str, Any]], **more: Any) -> layouts.Write:
    """A task for each image, with an annotation for each list of results."""
    def write(root: Path) -> None:
        for name in 'abcd':
            save(root / f'{name}.png', PIXELS)
        text(root / 'project.json', json.dumps([dict(
            id=index, data=dict(image=f'{name}.png'), annotations=[dict(result=result) for result in results], **more)
            for index, name in enumerate('abcd')]))
    return write


def rectangle(x: float = 10, size: tuple[int, int] = (80, 60), labels: tuple[str, ...] = ('cat',), **more: Any
              ) -> dict[str, Any]:
    return dict(type='rectanglelabels', original_width=size[0], original_height=size[1], value=dict(
        dict(PERCENT, x=x, rectanglelabels=[*labels]), **more))


def test_an_empty_last_annotation_hides_no_other(tmp_path: Path) -> None:
    studio([rectangle(), rectangle(50)], [])(tmp_path)
    data = find_data(tmp_path)
    assert data.account.used == dict(images=4, objects=8)
    assert says(data, ' of 8 objects are used') and says(data, '4 tasks have an empty last annotation')


def test_all_annotations_and_predictions_are_seen(tmp_path: Path) -> None:
    studio([rectangle()], [rectangle(50)], predictions=[dict(result=[rectangle(20)])])(tmp_path)
    data = find_data(tmp_path)
    assert says(data, '4 of 12 objects are used; skipped: 4 objects are of other annotations of their')
    assert says(data, '4 objects are predictions') and boxes_of(data) == [[40, 20, 20, 30]] * 4


def test_each_label_of_a_region_is_an_object(tmp_path: Path) -> None:
    studio([rectangle(labels=('cat', 'dog'))])(tmp_path)
    data = find_data(tmp_path)
    assert data.classes == ['cat', 'dog'] and data.account.used['objects'] == data.account.seen['objects'] == 8
    assert says(data, '4 objects have the same place as another object, but another class')


def test_percents_need_no_stated_size(tmp_path: Path) -> None:
    """A turned box and an ellipse lie where they do in the image, not in that which a region states."""
    studio([rectangle(size=(160, 120)), rectangle(50, (999, 1)), rectangle(100 * 30 / 80, (8, 6), rotation=90,
            width=100 * 30 / 80, height=100 * 20 / 60)])(tmp_path)
    data = find_data(tmp_path)
    assert boxes_of(data)[:3] == [[8, 20, 20, 30], [40, 20, 20, 30], [10, 20, 20, 30]]
    assert says(data, '4 tasks have regions that state different sizes of their image') and data.account.used[
        'objects'] == 12


# CSV

def test_a_line_with_too_many_cells_is_refused_with_its_number(tmp_path: Path) -> None:
    save(tmp_path / 'a.jpg', PIXELS)
    lines = 'filename,class,xmin,ymin,xmax,ymax', '', 'a.jpg,cat,10,20,30,50', 'a.jpg,cat,10,5,20,30,50'
    text(tmp_path / 'boxes.csv', '\n'.join(lines))
    assert 'boxes.csv has 7 cells in line 4, but 6 columns' in refusal(find_data, tmp_path)


def open_images(*lines: str) -> layouts.Write:
    def write(root: Path) -> None:
        for name in 'abcd':
            save(root / f'{name}.jpg', PIXELS)
        text(root / 'boxes.csv', 'ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf\n' + '\n'.join(lines))
    return write


def test_groups_of_open_images_are_crowds_and_the_unit_is_one_for_a_file(tmp_path: Path) -> None:
    open_images('a,cat,0.125,0.375,0.25,0.75,0', 'b,cat,0.5,1.0039,0.25,0.75,0', 'c,cat,0.5,0.75,0.25,0.75,1')(tmp_path)
    data = find_data(tmp_path)
    assert sorted(boxes_of(data)) == [[10, 15, 20, 30], [40, 15, 20, 30], [40, 15, 40, 30]]
    assert says(data, '2 of 3 objects are used; skipped: 1 objects are groups (IsGroupOf): losses')
    assert sorted(one.keys['iscrowd'] for pictures in data.splits.values() for two in pictures for one in two.objects
                  ) == [0, 0, 1]


def test_shares_beside_pixels_are_refused(tmp_path: Path) -> None:
    open_images('a,cat,0.125,0.375,0.25,0.75,0', 'b,cat,0.5,0.9,0.25,0.75,0', 'c,cat,40,60,10,30,0')(tmp_path)
    assert 'line 4, has a coordinate of 60, but 2 of 3 lines have only fractions' in refusal(find_data, tmp_path)


# Label maps

def test_zero_means_no_class_in_ade20k(tmp_path: Path) -> None:
    pixels = label_map(13)
    for split, short in (('training', 'train'), ('validation', 'val')):
        for index in (1, 2):
            save(tmp_path / f'data/images/{split}/ADE_{short}_{index:08}.jpg', PIXELS)
            save(tmp_path / f'data/annotations/{split}/ADE_{short}_{index:08}.png', pixels)
    data = find_data(tmp_path / 'data')
    assert (len(data.classes), data.classes[0], data.classes[12]) == (150, 'wall', 'person')
    assert says(data, 'The files have names as in ADE20K, so 0 means no class')
    actual = layouts.loaded(data, tmp_path / 'out')['train'][0]['gt_seg_map']
    np.testing.assert_array_equal(actual, np.where(pixels, 12, 255))
    text(tmp_path / 'names.txt', '\n'.join(f'n{index}' for index in range(14)))
    named = find_data(tmp_path / 'data', ReadingOptions(colours=tmp_path / 'names.txt'))
    assert named.classes == [f'n{index}' for index in range(14)]


def test_values_of_mots_are_classes_and_objects(tmp_path: Path) -> None:
    for index in range(4):
        pixels = np.where(label_map(), 2010 if index % 2 else 1001, 0).astype(np.uint16)
        pixels[:4, :4], pixels[55:, 70:] = 1002, 10_000
        save(tmp_path / f'images/{index:06}.png', PIXELS)
        save(tmp_path / f'masks/{index:06}.png', pixels)
    data = find_data(tmp_path)
    assert data.classes == ['class_1', 'class_2'] and not data.is_semantic
    assert says(data, '8 of 12 objects are used; skipped: 4 objects are regions to ignore (10000)')
    assert sorted(boxes_of(data))[-1] == [10, 20, 20, 30]
    for options in (ReadingOptions(masks='classes'), ReadingOptions(semantic=True)):
        assert 'as in KITTI and MOTS: convert' in refusal(find_data, tmp_path, options)


# The whole account


def test_a_table_of_many_classes_is_cut_and_says_so() -> None:
    table = to_table(dict(classes={f'c{index}': dict(images=1, pixels=0.1) for index in range(MOST_ROWS + 5)}))
    assert table.row_count == MOST_ROWS and table.caption == (
        'and 5 more classes: --out writes all to statistics.json')
