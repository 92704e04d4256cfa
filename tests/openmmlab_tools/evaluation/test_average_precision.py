"""AP is the curve of pycocotools without boxes of equal scores; with them, their order has no effect."""
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmmlab_tools.evaluation.average_precision import IOUS, RECALLS, box_metrics, curves

ALL = 2 ** len(IOUS) - 1
SCORES = st.sampled_from([0.25, 0.5, 0.75])
BOXES = st.lists(st.tuples(st.integers(0, 1), SCORES, st.sampled_from([0, 1, 63, ALL]), st.sampled_from([0, 0, ALL])),
                 max_size=6)
IMAGES = st.lists(st.tuples(st.tuples(st.integers(0, 3), st.integers(0, 3)), BOXES), min_size=1, max_size=5)


def rows_of(images: list[Any]) -> list[dict[str, Any]]:
    """Rows of images, with at least as many objects as hits."""
    return [dict(objects=[count + sum(box[0] == label and box[2] > 0 for box in boxes)
                          for label, count in enumerate(objects)], bbox=[[*box] for box in boxes])
            for objects, boxes in images]


def by_definition(rows: list[dict[str, Any]], weights: np.ndarray, label: int, bit: int) -> float:
    """AP of boxes above all thresholds of scores: each is a point of the curve."""
    boxes = [(score, weight, bool(hits >> bit & 1), bool(ignored >> bit & 1))
             for row, weight in zip(rows, weights, strict=True) for one, score, hits, ignored in row['bbox']
             if one == label]
    total, points = sum(weight * row['objects'][label] for row, weight in zip(rows, weights, strict=True)), []
    for least in {score for score, *_ in boxes}:
        hits = sum(weight for score, weight, is_hit, _ in boxes if score >= least and is_hit)
        count = sum(weight for score, weight, is_hit, is_ignored in boxes
                    if score >= least and (is_hit or not is_ignored))
        points.append((hits / total, hits / count if count else 0))
    return float(np.mean([max((precision for recall, precision in points if recall >= least), default=0)
                          for least in RECALLS]))


@given(IMAGES, st.randoms(use_true_random=False))
def test_boxes_of_equal_scores_count_together_in_each_draw(images: list[Any], random: Any) -> None:
    rows = rows_of(images)
    weights = np.array([[1] * len(rows), [random.randrange(3) for _ in rows]])
    actual = box_metrics(rows, 'bbox', weights)
    for label in range(2):
        for row, one in zip(weights, actual['by_class'][:, label], strict=True):
            if not row @ [row['objects'][label] for row in rows]:
                assert np.isnan(one)
            else:
                assert one == pytest.approx(np.mean([by_definition(rows, row, label, bit)
                                                     for bit in range(len(IOUS))]), abs=1e-12)
    mixed = [dict(row, bbox=random.sample(row['bbox'], len(row['bbox']))) for row in rows]
    order = random.sample(range(len(rows)), len(rows))
    again = box_metrics([mixed[index] for index in order], 'bbox', weights[:, order])
    assert all(np.array_equal(actual[name], again[name], equal_nan=True) for name in ('by_class', 'AP50', 'AP75'))


def test_one_hit_and_one_miss_of_one_score_have_a_precision_of_a_half() -> None:
    hit, miss = [0, 0.5, ALL, 0], [0, 0.5, 0, 0]
    for boxes in ([hit, miss], [miss, hit]):
        rows = [dict(objects=[1], bbox=boxes)] * 6
        assert box_metrics(rows, 'bbox', np.ones((1, 6), int))['AP'] == 0.5


def test_a_weight_is_the_number_of_copies_of_an_image() -> None:
    random = np.random.default_rng(0)
    rows = [dict(objects=[3], bbox=[[0, score, hits, 0] for score, hits in zip(
        random.random(4).round(1), random.choice([0, 1, ALL], 4), strict=True)]) for _ in range(9)]
    weights = np.arange(len(rows)) % 3
    copies = [row for row, weight in zip(rows, weights, strict=True) for _ in range(weight)]
    one, other = (box_metrics(part, 'bbox', np.array([row]))['AP'] for part, row in (
        (rows, weights), (copies, np.ones(len(copies), int))))
    assert one == pytest.approx(other, abs=1e-12)


@given(st.integers(1, 60), st.integers(0, 9))
def test_the_points_of_recall_are_those_of_pycocotools(objects: int, seed: int) -> None:
    """To the last digit: its lines are repeated here for boxes without equal scores."""
    is_hit = np.random.default_rng(seed).random(80) < 0.5
    is_hit[np.flatnonzero(is_hit)[objects:]] = False
    hits, count = np.cumsum(is_hit).astype(float), np.arange(1, 81)
    recall, precision = hits / objects, hits / (count + np.spacing(1))
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(recall, np.linspace(.0, 1.00, 101), side='left')
    expected = np.append(precision, 0)[places]
    curve, = curves(-np.arange(80.), [(is_hit, np.zeros(80, bool))], np.ones((80, 1), int), np.array([objects]))
    assert curve.line.tolist() == expected.tolist()
    assert curve.areas == pytest.approx(expected.mean(), abs=1e-12)
