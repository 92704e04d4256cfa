"""Tables, figures, and pairs of true and predicted classes, of boxes and of pixels."""
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from mmengine.logging import MessageHub
from mmseg.evaluation import IoUMetric

from openmmlab_tools.evaluation import confusion as confusion_module
from openmmlab_tools.evaluation.confusion import Confusion
from openmmlab_tools.evaluation.gathered import Gathered
from openmmlab_tools.evaluation.hidden import what_is_hidden
from openmmlab_tools.evaluation.matching import Matches, match_pixels
from openmmlab_tools.hooks import report
from tests.openmmlab_tools.evaluation.test_thresholds import pair


def test_a_table_is_aligned_and_marks_what_is_missing() -> None:
    assert report.table([('validation after', 9, 10), ('mAP', 0.5, -1.), ('mIoU', 87.6543, float('nan'))]) == (
        'validation after       9  10\n'
        'mAP                0.500   -\n'
        'mIoU              87.654   -')
    assert report.table([('a', 'b [c] :d:'), ('longer', 'e')]) == 'a       b [c] :d:\nlonger  e'


def test_ap_of_a_class_whose_name_ends_that_of_another_is_its_own() -> None:
    metrics = dict.fromkeys(('coco/car/truck_precision', 'coco/truck_precision', 'coco/bbox_mAP', 'a_precision'))
    assert report.ap_keys(metrics, ('truck', 'car/truck', 'a', 'b', 'ruck')) == [
        'coco/truck_precision', 'coco/car/truck_precision', 'a_precision', '', '']


def test_the_curve_has_all_losses_and_metrics_by_iteration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    validations = {100: dict(mAP=0.25, mAP_l=-1), 300: dict(mAP=0.5, mAP_50=0.75)}
    drawn: list[Figure] = []
    monkeypatch.setattr(report, 'write_figure', lambda path, figure: drawn.append(figure))
    hub = MessageHub.get_instance('curve')
    losses = np.random.rand(200)
    for loss in losses:
        hub.update_scalar('train/loss', float(loss))
    # Resumed after 100 iterations from a checkpoint without a log.
    report.draw_curve(SimpleNamespace(message_hub=hub, iter=300, work_dir=str(tmp_path)), validations)
    loss, *metrics = drawn[0].axes
    every, smooth = (line.get_xydata() for line in loss.lines)
    assert every[:, 0].tolist() == list(range(101, 301)) and (every[:, 1] == losses).all()
    assert smooth[-1].tolist() == pytest.approx([300, losses[-4:].mean()])  # a fiftieth of the run
    lines = {line.get_label(): line.get_xydata() for axes in metrics for line in axes.lines}
    assert lines.keys() == {'mAP', 'mAP_50'}  # not mAP_l, of no object
    for name, line in lines.items():
        np.testing.assert_equal(line, [[step, one.get(name, np.nan)] for step, one in validations.items()])


def test_boxes_with_a_low_score_are_not_counted() -> None:
    matches = Matches(*map(np.array, ([0, 1, 1, 0], [0, 0, 2, 1], [0.9, 0.3, 0.8, 0.2], [2, 1])))
    assert matches.table(0.3).tolist() == [[1, 1, 0], [0, 0, 1], [0, 1, 0]]


def test_pixels_are_counted_as_by_mmseg() -> None:
    true, predicted = torch.randint(5, (2, 1, 20, 30))
    true[true == 3] = 255  # ignored; 4 is no class, and the prediction may be one, too
    counts = match_pixels(true.numpy(), predicted.numpy(), 3, 255)
    hits, union, _, area = IoUMetric.intersect_and_union(predicted, true, 3, 255)
    assert counts.diagonal()[:3].tolist() == hits.tolist() and counts.sum(1)[:3].tolist() == area.tolist()
    assert (counts.sum(0) + counts.sum(1) - counts.diagonal())[:3].tolist() == union.tolist()
    assert counts[3].sum() == (true == 4).sum() and counts[:, 3].sum() > 0


def seen(metrics: list, counts: Mapping[str, list] = {}) -> Any:
    """A confusion whose metrics have compared boxes, or that has counted pixels."""
    loop = SimpleNamespace(evaluator=SimpleNamespace(metrics=metrics),
                           dataloader=SimpleNamespace(dataset=SimpleNamespace(metainfo=dict(classes=('a', 'b')))))
    gathered = Gathered(loop)
    gathered.pixels = {name: torch.tensor(one).to_sparse() for name, one in counts.items()}
    return Confusion(gathered)


MANY = [([0., 0., 9., 9.], 0, False)] * 3


@pytest.mark.parametrize('objects, boxes, numbers, least, hidden', [
    (MANY, [], (1, 2, 3), None, []),
    (MANY[:2], [([0., 0., 9., 9.], 0, 0.9)] * 4, (1, 2, 3), None, [
        'mAP counts only the best 3 boxes of each class in an image, but there are up to 4 (0 images with more '
        'objects, '
        "1 image with more boxes). To count all, set type and proposal_nums of the metric to "
        "'openmmlab_tools.CocoMetric' and (1, 10, 4)."]),
    (MANY, [], (1, 1, 2), None, [
        'mAP counts only the best 2 boxes of each class in an image, but there are up to 3 (1 image with more objects, '
        "0 images with more boxes). To count all, set type and proposal_nums of the metric to "
        "'openmmlab_tools.CocoMetric' and (1, 10, 3)."]),
    (MANY, [], (2, 100, 1000), 0.05, [
        'The model drops boxes with a score of at most 0.05 (model.test_cfg.rcnn.score_thr), so the metric does not '
        'count them. This lowers mAP.']),
    ([], [], (1, 1, 2), 0., ['1 of 1 images have no annotation, so each box there counts as wrong.'])])
def test_it_is_told_what_the_metric_of_boxes_hides(objects: list, boxes: list, numbers: tuple, least: float | None,
                                                   hidden: list[str]) -> None:
    metric = SimpleNamespace(compared=pair(objects, boxes), proposal_nums=numbers, untested=0)
    test_cfg = None if least is None else dict(rpn=dict(max_per_img=9), rcnn=dict(score_thr=least))
    assert what_is_hidden(seen([metric]), test_cfg) == hidden
    metric.untested = 5
    assert ('The annotation file lists 5 more images. They were not tested and do not count.' in
            what_is_hidden(seen([metric]), None))


def test_it_is_told_what_the_metric_of_pixels_hides() -> None:
    counts = dict(a=[[1, 0, 0], [0, 1, 0], [0, 0, 0]], b=[[1, 0, 0], [0, 0, 0], [3, 1, 0]], c=[[0] * 3] * 3)
    assert what_is_hidden(seen([], counts), None) == [
        '4 pixels in 1 label maps have labels without a class. They count as wrong. To ignore a label, set '
        'ignore_index of the metric (now 255).',
        '1 of 3 label maps have ignored labels only, so predictions there do not count.']


def test_a_surer_box_of_another_class_does_not_take_an_object_away() -> None:
    """The first class has AP 1, so its recall is 1, too. Two boxes of the second one are wrong."""
    box = [0., 0., 9., 9.]
    metric = SimpleNamespace(compared=pair([(box, 0, False), ([20., 0., 9., 9.], 1, False)], [
        (box, 1, 0.9), (box, 0, 0.8), (box, 1, 0.2)]), ap_by_class=dict(bbox=[1., 0.], segm=[0.5, math.nan]))
    confusion = seen([metric])
    total = confusion.total()
    assert total.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]  # the picture shows what is taken for what
    columns = confusion.by_class(total)
    assert columns.pop('mask AP')[0] == 0.5
    assert {name: values[0] for name, values in columns.items()} == {
        'objects': 1, 'box AP': 1, 'box recall': 1, 'box precision': 1, 'best box F1': 1,
        'above score': pytest.approx(0.4)}
    assert (columns['objects'][1], columns['box recall'][1], columns['box precision'][1]) == (1, 0, 0)
    assert math.isnan(columns['best box F1'][1])


@pytest.mark.parametrize('classes', [2, 30])
def test_the_picture_names_what_is_missing_and_has_a_number_in_each_cell(
        classes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(confusion_module, 'write_figure', lambda path, figure: drawn.append(figure))
    confusion, total = seen([]), torch.zeros(classes + 1, classes + 1).long()
    confusion.classes = [f'class {index}' for index in range(classes)]
    total[0, 0], total[0, -1], total[-1, 1] = 3000, 1000, 7
    confusion.draw(total, tmp_path / 'confusion.png', 'test')
    axes = drawn[0].axes[0]
    rows, columns = ([text.get_text() for text in labels] for labels in (
        axes.get_yticklabels(), axes.get_xticklabels()))
    assert (rows[-1], columns[-1]) == ('no object', 'no box') and rows[:-1] == columns[:-1] == confusion.classes
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert cells.pop((1, classes)) == '7'
    assert cells == ({(0, 0): '75 %\n3,000', (classes, 0): '25 %\n1,000'} if classes == 2 else
                     {(0, 0): '75', (classes, 0): '25'})


@pytest.mark.parametrize('has_pixels', [False, True])
def test_of_many_classes_those_that_are_confused_most_are_drawn(
        has_pixels: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shares stay those of the whole class; of classes that are not confused, those with most misses come first."""
    drawn: list[Figure] = []
    monkeypatch.setattr(confusion_module, 'write_figure', lambda path, figure: drawn.append(figure))
    confusion, total = seen([]), torch.eye(1001).long() * 90
    confusion.classes = [f'class {index}' for index in range(1000)]
    confusion.counts = dict(a=total) if has_pixels else {}
    total[7, 900] = 10
    for index in range(40, 80):
        total[index, -1] = index
    confusion.draw(total, tmp_path / 'confusion.png', 'test')
    axes = drawn[0].axes[0]
    names = [text.get_text() for text in axes.get_yticklabels()]
    expected = ['class 7', *(f'class {index}' for index in range(52, 80)), 'class 900']
    assert names == expected + ['no object'] * (not has_pixels)
    assert axes.get_title() == 'test\n30 of 1,000 classes, which are confused most'
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert cells[29, 0] == '10' and cells[0, 0] == '90'
