"""The best scores are those of the boxes that COCO's metric matches, and belong to a checkpoint."""
import json
from pathlib import Path

import numpy as np
import pytest
from hotcoco import COCO
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from openmmlab_tools.evaluation.matching import Matches, match
from openmmlab_tools.evaluation.thresholds import Thresholds, best_scores, find_thresholds, write_thresholds
from tests.helpers import refusal

BOX, BESIDE, NEAR, FAR = [0., 0., 10., 10.], [0., 0., 10., 8.], [0., 0., 10., 6.], [50., 50., 10., 10.]
NONE = 2  # no class, after classes 0 and 1


def pair(objects: list, boxes: list) -> tuple[COCO, COCO]:
    true = COCO(dict(
        images=[dict(id=1, file_name='', height=99, width=99)], categories=[dict(id=1, name='a'), dict(id=2, name='b')],
        annotations=[dict(id=index, image_id=1, category_id=label + 1, bbox=bbox, area=bbox[2] * bbox[3],
                          iscrowd=int(is_crowd)) for index, (bbox, label, is_crowd) in enumerate(objects, 1)]))
    return true, true.load_res([dict(image_id=1, category_id=label + 1, bbox=bbox, score=score)
                                for bbox, label, score in boxes])


@pytest.mark.parametrize('boxes, objects, pairs', [
    ([], [], []),
    ([], [(BOX, 1, False)], []),
    ([(BESIDE, 1, 0.9)], [(BOX, 0, False)], [(0, 1)]),
    ([(BOX, 1, 0.9)], [(FAR, 0, False), ([0., 0., 10., 4.], 1, False)], [(NONE, 1)]),
    # The better score takes the object, the other finds none, or the next one.
    ([(NEAR, 1, 0.8), (BESIDE, 0, 0.9)], [(BOX, 0, False)], [(0, 0), (NONE, 1)]),
    ([(NEAR, 1, 0.8), (BOX, 0, 0.9)], [(BESIDE, 1, False), (BOX, 0, False)], [(0, 0), (1, 1)]),
    # All boxes on a crowd are left out, and a free object beside it is found.
    ([(BOX, 1, 0.9), (BOX, 0, 0.8)], [(BOX, 0, True)], []),
    ([(FAR, 1, 0.9)], [(BOX, 0, True), (FAR, 1, False)], [(1, 1)])])
def test_boxes_are_matched_in_the_order_of_their_scores(boxes: list, objects: list, pairs: list) -> None:
    actual = match(*pair(objects, boxes), within_classes=False)
    assert sorted(zip(actual.true.tolist(), actual.predicted.tolist(), strict=True)) == sorted(pairs)
    assert actual.objects.tolist() == [sum(one[1] == label and not one[2] for one in objects) for label in (0, 1)]


@pytest.mark.parametrize('objects, boxes, best', [
    ([(BOX, 0, False)], [(BOX, 0, 0.9)], (0.45, 1.)),
    ([(BOX, 0, False)], [(BOX, 0, 0.9), (FAR, 0, 0.5)], (0.7, 1.)),
    ([(BOX, 0, False)], [(BOX, 0, 0.5), (FAR, 0, 0.5)], (0.25, 2 / 3)),  # boxes of one score count together
    ([(BOX, 0, False)], [(BOX, 0, 0.9), (BOX, 0, 0.5)], (0.7, 1.)),  # an object is found once
    ([(BOX, 0, False), (FAR, 0, False)], [(BOX, 0, 0.9)], (0.45, 2 / 3)),
    ([(BOX, 0, False), (FAR, 0, True)], [(FAR, 0, 0.95), (BOX, 0, 0.9), (FAR, 0, 0.8)], (0.45, 1.)),
    ([(BOX, 0, False)], [(FAR, 0, 0.9)], None), ([(BOX, 0, False)], [], None),
    ([(BOX, 0, False)], [(BOX, 1, 0.9)], None)])
def test_the_best_score_is_between_boxes_that_match_and_others(
        objects: list, boxes: list, best: tuple[float, float] | None) -> None:
    first, second = best_scores(match(*pair(objects, boxes), within_classes=True))
    assert (first or ()) == pytest.approx(best or ()) and second is None


NEXT, AFTER = (float(np.float32(0.5) + np.float32(2 ** -24) * step) for step in (1, 2))  # neighbours of a score


@example([(NEXT, True), (0.5, False)], 1)
@example([(AFTER, True), (NEXT, False)], 1)
@given(st.lists(st.tuples(st.floats(2 ** -7, 1, width=32), st.booleans()), max_size=8), st.integers(1, 9))
def test_boxes_above_the_best_score_have_the_best_f1(boxes: list[tuple[float, bool]], more: int) -> None:
    """Also where scores are neighbours, and rounded as the scores of predictions are."""
    scores, hits = np.array([score for score, _ in boxes]), np.array([hit for _, hit in boxes], bool)
    objects = int(hits.sum()) + more
    best, = best_scores(Matches(np.zeros(len(boxes), int), 1 - hits.astype(int), scores, np.array([objects])))
    if best is None:
        assert not hits.any()
        return
    above = [np.float32(scores) > np.float32(threshold) for threshold in (best[0], *(scores - 2 ** -25), 0)]
    f1 = [2 * hits[kept].sum() / (kept.sum() + objects) for kept in above]
    assert best[1] == f1[0] == max(f1)


def test_scores_are_found_for_the_weights_that_they_were_measured_with(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    for time in ('1', '2'):
        (tmp_path / f'test/{time}').mkdir(parents=True)
        write_thresholds(tmp_path / f'test/{time}', model, ['猫', 'none'], [(0.375, 0.5), None])
    assert find_thresholds([tmp_path / 'no', tmp_path], model) == Thresholds(
        tmp_path / 'test/2/thresholds.json', {'猫': 0.375})
    assert find_thresholds([tmp_path], other) is None
    (tmp_path / 'thresholds.json').write_text('{"classes": []}')
    assert refusal(find_thresholds, [tmp_path], model) == (
        f"{tmp_path}/thresholds.json cannot be used ('weights'): remove it, or test the checkpoint again.")


def test_a_later_test_with_the_best_f1_does_not_take_back_a_promise(tmp_path: Path) -> None:
    """A file of both kinds has both. One beside the checkpoint is first, because somebody has put it there."""
    model, best = nn.Linear(2, 2), [(0.1075, 0.5), None]
    for number, promised in enumerate([None, (0.5, 0.2), (0.9944, 0.1), None]):
        (tmp_path / f'test/{number}').mkdir(parents=True)
        write_thresholds(tmp_path / f'test/{number}', model, ['cat', 'dog'], best, promised)
    actual = find_thresholds([tmp_path], model)
    assert actual == (tmp_path / 'test/2/thresholds.json', dict(cat=0.9944, dog=0.9944), 0.1, 0.95)
    assert actual.told.endswith('chosen to miss at most 10.0% of the objects of new images, with a confidence of 95%')
    content = json.loads(actual.file.read_text())
    assert content['purpose'] == 'at most missed' and content['best_f1']['cat'] == dict(score_thr=0.1075, f1=0.5)
    assert json.loads((tmp_path / 'test/3/thresholds.json').read_text())['purpose'] == 'best F1'
    write_thresholds(tmp_path, model, ['cat', 'dog'], best)
    by_hand = find_thresholds([tmp_path / 'test', tmp_path], model)
    assert by_hand and by_hand.scores == dict(cat=0.1075) and 'the score with the best F1' in by_hand.told
    earlier = {key: value for key, value in content.items() if key not in ('purpose', 'confidence', 'best_f1')}
    (tmp_path / 'thresholds.json').write_text(json.dumps(earlier))
    old = find_thresholds([tmp_path], model)
    assert old and old.scores['cat'] == 0.9944 and 'may miss more' in old.told
