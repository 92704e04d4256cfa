"""Predictions become what people want of them: pictures, files, COCO's results and supervision's detections."""
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from openmmlab_tools.pictures.images import read_image
from openmmlab_tools.pictures.painting import paint_boxes
from openmmlab_tools.pictures.prediction import Prediction, to_coco
from tests.helpers import refusal
from tests.pictures import MOVED, is_painted, random_image

OBJECTS = Prediction((40, 60), ('cat', 'dog'), np.float32([[10, 5, 30, 15.123], [1, 2, 9, 9], [2, 2, 40, 30]]),
                     np.array([1, 0, 1]), np.float32([0.9, 0.4, 0.35]), name='a.png')
NONE, LABEL_MAP = OBJECTS.above(1), Prediction((2, 2), ('a',), label_map=np.zeros((2, 2)))


def encoded(cells: np.ndarray) -> dict:
    rle = coco_mask.encode(np.asfortranarray(cells, np.uint8))
    return dict(rle, counts=rle['counts'].decode())


MASK = np.zeros((40, 60), np.uint8)
MASK[5:15, 10:30] = 1


@pytest.mark.parametrize('score_thr, kept', [
    (0.3, [0, 1, 2]), (0.4, [0]), ({'dog': 0.5}, [0, 1]), ({'cat': 0.8}, [0, 2]), ({}, [0, 1, 2]),
    ({'cat': 0.3, '': 0.95}, [1])])
def test_thresholds_are_a_number_or_by_class(score_thr: float | dict, kept: list[int]) -> None:
    actual = OBJECTS.above(score_thr)
    assert np.array_equal(actual.boxes, OBJECTS.boxes[kept]) and np.array_equal(actual.labels, OBJECTS.labels[kept])


def test_the_boxes_that_are_predicted_are_painted_and_nothing_else(tmp_path: Path) -> None:
    pixels = random_image(tmp_path / 'a.png', 120, 160)
    actual = Prediction((120, 160), ('cat',), np.float32([[10, 10, 90, 50]]), np.array([0]), np.float32([0.9]),
                        image=tmp_path / 'a.png', palette=[(220, 20, 60)])
    painted = actual.plot()
    is_line = (abs(painted - np.array(actual.palette[0])) <= 255 / 5 + 1).all(axis=2)  # a fifth of the image is seen
    for side in (10, 50):
        assert is_line[side - MOVED:side + MOVED + 1, 10:90].any(axis=0).all()
    for side in (10, 90):
        assert is_line[10:50, side - MOVED:side + MOVED + 1].any(axis=1).all()
    outside = np.ones((120, 160), bool)
    outside[9 - MOVED:52 + MOVED, 9 - MOVED:92 + MOVED] = False  # lines are up to three pixels wide
    assert not is_painted(painted, pixels)[outside].any()
    # Names and scores, which can be left out.
    inside = np.s_[14:46, 14:86]
    assert is_painted(painted, pixels)[inside].any()
    assert not is_painted(actual.plot(labels=False), pixels)[inside].any()
    assert not is_painted(actual.plot(0.9), pixels).any()
    actual.save(tmp_path / 'out.png')
    assert np.array_equal(read_image(tmp_path / 'out.png'), painted)


@pytest.mark.parametrize('cells', [MASK * 0, np.arange(40 * 60).reshape(40, 60) % 7 < 3, MASK * 0 + 1])
def test_a_mask_is_painted_where_it_is(cells: np.ndarray) -> None:
    painted = paint_boxes(np.full((40, 60, 3), 255, np.uint8), OBJECTS.boxes[:1] * 0, np.array([0]),
                          masks=[encoded(cells)], palette=[(0, 0, 0)])
    assert np.array_equal((painted < 255).any(axis=2)[4:, 4:], cells[4:, 4:])  # beside the box


def test_boxes_far_outside_of_the_image_are_painted_where_they_are_inside() -> None:
    image, far = np.full((40, 60, 3), 255, np.uint8), np.array([[-1e9, 10, 50, np.inf]], np.float32)
    near = np.array([[-20, 10, 50, 70]], np.float32)
    painted = paint_boxes(image, far, np.array([0]), ['a'])
    assert (painted == paint_boxes(image, near, np.array([0]), ['a'])).all() and (painted != image).any()
    assert (painted[:11, :20] != 255).any()  # the name, at the left of what is inside


@pytest.mark.parametrize('side, labels, expected', [(100, True, False), (200, True, True), (200, False, False)])
def test_names_are_written_on_a_label_map_where_they_are_legible(side: int, labels: bool, expected: bool) -> None:
    size = side, side + 1
    actual = Prediction(size, ('a',), label_map=np.zeros(size, np.uint8), image=np.zeros((*size, 3), np.uint8))
    with patch('matplotlib.axes.Axes.text') as text:
        assert actual.plot(labels=labels).shape == (*size, 3)
    assert text.called is expected


def test_supervision_has_boxes_masks_and_names() -> None:
    supervision = pytest.importorskip('supervision')
    actual = replace(OBJECTS, masks=[encoded(MASK * 0), encoded(MASK), encoded(MASK)]).to_supervision()
    assert isinstance(actual, supervision.Detections) and np.array_equal(actual.xyxy, OBJECTS.boxes)
    assert [*actual.data['class_name']] == ['dog', 'cat', 'dog'] and np.array_equal(actual.mask[2], MASK)
    assert len(NONE.to_supervision()) == 0
    assert 'the prediction of image is a label map, which supervision' in refusal(LABEL_MAP.to_supervision)


def test_predictions_are_results_of_coco(tmp_path: Path) -> None:
    file, plain = tmp_path / 'predictions.json', OBJECTS.above(0.5)
    actual = {'a.png': NONE, 'b.png': replace(plain, masks=[encoded(MASK)]), 'c.png': plain}
    file.write_text(json.dumps(to_coco(actual)))
    coco = COCO(file)
    assert {image['id']: image['file_name'] for image in coco.loadImgs(coco.getImgIds())} == dict(enumerate(actual, 1))
    results = coco.loadRes(coco.dataset['annotations'])
    assert not results.getAnnIds(imgIds=[1])
    with_mask, without = results.loadAnns(results.getAnnIds())
    assert coco.cats[with_mask['category_id']]['name'] == 'dog' and with_mask['score'] == 0.9
    assert np.array_equal(results.annToMask(with_mask), MASK)
    assert (without['bbox'], without['image_id']) == ([10, 5, 20, 10.12], 3)
    assert OBJECTS.to_coco() == to_coco({'a.png': OBJECTS})


@pytest.mark.parametrize('call, words', [
    (lambda: OBJECTS.above({'dogs': 0.5}), 'score_thr contains dogs, but the model has no such class: did you mean '
     'dog: name a class of the model, or pass a number.'),
    *((lambda one=one: OBJECTS.above(one), 'must be a number from 0 to 1') for one in (np.nan, -0.1, {'dog': 2})),
    (OBJECTS.plot, 'the prediction a.png has no image to draw on: set its image'),
    (lambda: OBJECTS.save('out.gif'), 'out.gif ends in neither .png nor .jpg'),
    (LABEL_MAP.to_coco, "the prediction of image is a label map, which COCO's layout does not contain")])
def test_what_a_prediction_refuses_is_one_sentence(call: Callable, words: str) -> None:
    assert words in refusal(call)
