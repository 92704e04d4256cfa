"""The numbers of a detector's report, each by hand, and labels that are suspected."""
from typing import Any

import numpy as np
import pytest

from openmmlab_tools.evaluation.box_report import Boxes, judge, quarters, summarize

CLASSES = ('cat', 'dog')


def boxes(objects: list[tuple[Any, ...]], found: list[tuple[Any, ...]], images: int = 3) -> Boxes:
    """Objects are image, class, box and whether they are a crowd; boxes have a score there."""
    def entries(ones: list[tuple[Any, ...]], last: str) -> list[dict[str, Any]]:
        return [{'iscrowd': 0, 'id': number, 'image_id': image, 'category_id': label, 'bbox': [float(x) for x in box],
                 'area': float(box[2] * box[3]), last: value}
                for number, (image, label, box, value) in enumerate(ones, start=1)]

    return Boxes(CLASSES, [dict(id=number, file_name=f'{number}.png', width=100 * number, height=100)
                           for number in range(1, images + 1)], entries(objects, 'iscrowd'), entries(found, 'score'))


HERE, NEAR, FAR = (10, 10, 20, 20), (20, 10, 20, 20), (60, 60, 20, 20)  # IoU of the first two: 1 / 3
CROWD = (50, 0, 40, 40)


@pytest.fixture
def data() -> Boxes:
    """A hit, a box on a crowd, a box beside its object, one of another class, and one of no object."""
    return boxes([(1, 1, HERE, 0), (1, 1, CROWD, 1), (2, 1, HERE, 0), (3, 2, HERE, 0)], [
        (1, 1, HERE, 0.9), (1, 1, (55, 5, 10, 10), 0.95), (2, 1, NEAR, 0.8), (3, 1, HERE, 0.7), (3, 2, FAR, 0.6)])


def test_each_number_by_hand(data: Boxes) -> None:
    """The box on the crowd has no part in any of them."""
    actual = summarize(data)
    # Cats: hit, wrong, wrong; 2 objects: precision 1 up to recall 0.5, which are 51 of 101 points. Dogs: 0.
    assert actual['metrics']['bbox']['AP50'][0] == pytest.approx(51 / 101 / 2)
    assert actual['metrics']['bbox']['by_class'][1][0] == 0
    cat, dog = actual['curves']
    assert (cat['objects'], cat['f1'], cat['score']) == (2, pytest.approx(2 / 3), pytest.approx(0.85))
    assert cat['precision'] == pytest.approx([1] * 51 + [0] * 50)
    assert (dog['objects'], dog['f1'], dog['score']) == (1, 0, 1)
    assert actual['errors']['counts'] == dict(Cls=1, Loc=1, Both=0, Dupe=0, Bkg=1, Miss=0)
    # Without the wrong class, dogs' only box above 0.6 is a hit: AP 1. Cats stay.
    assert actual['errors']['delta_ap']['Cls'] == pytest.approx(0.5)
    # The box beside its object becomes a hit: cats have AP 1.
    assert actual['errors']['delta_ap']['Loc'] == pytest.approx(50 / 101 / 2)
    # Four boxes: 0.9 is a hit, 0.8, 0.7 and 0.6 are not.
    assert actual['calibration']['ece'] == pytest.approx((0.1 + 0.8 + 0.7 + 0.6) / 4)
    assert actual['confusion'] == [[1, 0, 1], [0, 0, 1], [0, 0, 0]]
    assert [image['wrong'] for image in actual['images'].values()] == [0, 1, 1]
    assert [one['id'] for one in actual['missed']] == [3, 4] and actual['wrong'] == []
    assert [image['found'] for image in actual['images'].values()] == [[[0, 0.9]], [[0, 0.]], [[1, 0.]]]


def test_sizes_are_quarters_of_the_data() -> None:
    assert quarters(np.array([4., 4., 4.])) == [(4, 4)]
    assert quarters(np.arange(1., 6.)) == [(1, 2), (np.nextafter(2, 9), 3), (np.nextafter(3, 9), 4),
                                           (np.nextafter(4, 9), 5)]
    ones = [(number, 1, (0, 0, 10 * number, 10 * number)) for number in range(1, 5)]
    actual = summarize(boxes([(*one, 0) for one in ones], [(*one, 0.9) for one in ones[:2]], images=4))['by_size']
    assert [image['AP'] for image in actual['images']] == pytest.approx([1, 0, 0])
    assert [labelled['AP'] for labelled in actual['objects']] == pytest.approx([1, 0, 0])
    assert [labelled['high'] for labelled in actual['objects']] == [20, 30, 40]
    assert [one['high'] for one in actual['images']] == pytest.approx([(100 * 100 * one) ** 0.5 for one in (2, 3, 4)])


def test_labels_are_suspected_by_class_by_place_and_where_there_is_none(data: Boxes) -> None:
    judged, suspects = judge(data, (0.5, 0.5))
    assert [(one['score'], one['suspect'], one['label'] and one['label']['id']) for one in suspects] == [
        (0.8, 'place', 3), (0.7, 'class', 4), (0.6, 'missing', None)]
    assert judged['confusion'] == [[1, 0, 1], [1, 0, 0], [1, 1, 0]]
    assert judge(data, (0.75, 0.75))[1] == suspects[:1]


@pytest.mark.parametrize('data', [boxes([], []), boxes([(1, 1, HERE, 0)], []), boxes([], [(1, 1, HERE, 0.5)])])
def test_data_without_objects_or_boxes_have_a_report(data: Boxes) -> None:
    actual = summarize(data)
    assert actual['metrics']['bbox']['AP'][0] == (0 if data.objects else None)
    assert sum(image['wrong'] for image in actual['images'].values()) == len(data.objects)
