"""The commands that make pictures of the documentation."""
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from lab.commands.join_pictures import GAP, join
from lab.commands.label_picture import labels_of, side_by_side
from lab.commands.page_picture import page_of
from openmmlab_tools.evaluation.page import render, section
from tests.helpers import refusal


def test_pictures_are_joined_in_rows_of_one_height() -> None:
    sizes, colours = ((30, 20), (10, 20), (40, 80)), ('red', 'lime', 'blue')
    joined = join([Image.new('RGB', size, colour) for size, colour in zip(sizes, colours, strict=True)], 2, 40)
    assert joined.size == (60 + GAP + 20, 40 + GAP + 40)
    pixels = np.asarray(joined)
    for row, column, colour in ((0, 0, (255, 0, 0)), (39, 59 + GAP + 1, (0, 255, 0)), (40 + GAP, 19, (0, 0, 255)),
                                (0, 61, (255,) * 3), (40 + GAP, 21, (255,) * 3)):
        assert tuple(pixels[row, column]) == colour


def test_a_section_of_a_report_is_shown_alone() -> None:
    page = render('Evaluation', [section('Metrics', 'AP.', '<b>1</b>'), section('Confusion', 'Few.', '<b>2</b>')])
    assert page_of(page, None) == page
    alone = page_of(page, 'Confusion')
    assert '<b>2</b>' in alone and '<style>' in alone and '<b>1</b>' not in alone and 'Evaluation</h1>' not in alone
    assert "no section 'Curves': choose from Metrics, Confusion." in refusal(page_of, page, 'Curves')


def test_labels_are_outlined_beside_predictions(tmp_path: Path) -> None:
    square = [[2, 2, 9, 2, 9, 9, 2, 9]]
    label = dict(id=1, image_id=7, category_id=1, bbox=[2, 2, 7, 7], area=49, iscrowd=0, segmentation=square)
    (tmp_path / 'coco.json').write_text(json.dumps(dict(
        images=[dict(id=number, file_name=f'val/{number}.png', height=16, width=24) for number in (6, 7)],
        annotations=[label], categories=[dict(id=1, name='cell')])))
    masks = labels_of(tmp_path / 'coco.json', '7.png')
    assert [coco_mask.area(mask) for mask in masks] == [49]
    figure = side_by_side(np.full((16, 24, 3), 30, np.uint8), dict(labels=masks, predictions=[]))
    assert [axes.get_title() for axes in figure.axes] == ['labels', 'predictions']
    assert [len(axes.collections) for axes in figure.axes] == [1, 0]
    for name in ('6.png', '8.png'):
        assert f'has no labels for {name}' in refusal(labels_of, tmp_path / 'coco.json', name)


@pytest.mark.parametrize('count', [1, 5])
def test_one_row_is_as_wide_as_its_pictures(count: int) -> None:
    assert join([Image.new('L', (7, 7))] * count, 5, 7).size == (7 * count + GAP * (count - 1), 7)
