"""The numbers of a segmentor's report are those of pixels that are counted one by one."""
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from openmmlab_tools.evaluation.map_report import count, summarize
from openmmlab_tools.evaluation.matching import match_pixels

CLASSES = 3


def counted(truth: np.ndarray, found: np.ndarray, ignored: int) -> dict[str, Any]:
    return count(truth, found, match_pixels(truth, found, CLASSES, ignored), ignored)


MAPS = arrays(np.uint8, (9, 12), elements=st.sampled_from([0, 1, 2, 3, 255]))


@given(MAPS, MAPS, st.sampled_from([255, 0, 4, -1]), st.sampled_from([3, -2]))
def test_pixels_are_counted(raw: np.ndarray, found: np.ndarray, ignored: int, outside: int) -> None:
    """Also where the truth is no class, where one of the classes is ignored, and where the model predicts none."""
    truth = np.where(raw == 255, ignored, np.where(raw == 3, outside, raw.astype(int)))
    counts = counted(truth, found, ignored)
    known = (raw < CLASSES) & (truth != ignored)
    assert counts['unknown'] == (raw == 3).sum()
    assert (np.array(counts['boundaries']) <= counts['regions']).all()
    assert counts['objects'] == [(known & (truth == one)).sum() for one in range(CLASSES)]
    assert counts['regions'] == [[(known & (truth == one) & (found == one)).sum() for one in range(CLASSES)],
                                 [(known & ((truth == one) | (found == one))).sum() for one in range(CLASSES)]]
    assert {(i, j): n for i, j, n in counts['confusion']} == {
        (i, j): n for i in range(CLASSES) for j in range(CLASSES + 1)
        if (n := (known & (truth == i) & (np.minimum(found, CLASSES) == j)).sum())}
    assert counts['wrong'] == pytest.approx((known & (truth != found)).sum() / max(known.sum(), 1))


def test_boundaries_are_as_wide_as_a_fiftieth_of_the_diagonal() -> None:
    """The diagonal of 60 x 80 is 100, so that boundaries have two pixels: a square of 20 has 20² - 16² of them."""
    truth, actual = np.zeros((60, 80), np.uint8), np.zeros((60, 80), np.uint8)
    truth[20:40, 20:40], actual[20:40, 40:60] = 1, 1
    counts = counted(truth, truth, 255)
    assert [part[1] for part in counts['boundaries']] == [144, 144]
    assert [part[0] for part in counts['boundaries']] == [60 * 80 - 56 * 76 + 24 ** 2 - 20 ** 2] * 2
    assert [part[1] for part in counted(truth, actual, 255)['boundaries']] == [0, 288]


def test_a_region_with_another_class_is_suspected_unless_the_classes_are_often_taken_for_each_other() -> None:
    """Class 2 is always predicted as 1, so that a region of it tells nothing; one of class 0 does."""
    truth, actual = np.zeros((2, 60, 80), np.uint8)
    actual[:, 40:] = truth[:, 40:] = 1
    truth[:20, 60:], truth[40:, 60:] = 0, 2
    images = {'a': counted(truth, actual, 255), 'b': counted(actual, actual, 255)}
    suspects = summarize(images, ('sky', 'road', 'tree'))['suspects']
    assert [(one['label'], one['category_id'], one['bbox'], one['image_id']) for one in suspects] == [
        (1, 2, [60, 0, 20, 20], 1), (3, 2, [60, 40, 20, 20], 1)]
    # Of pixels of class 0, 4800 of 5200 are right and 400 are 1; all of class 1 are right.
    assert [suspect['score'] for suspect in suspects] == pytest.approx([1 / (1 + 400 / 5200), 1 / 2])
