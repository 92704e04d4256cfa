"""Tables, figures, and pairs of true and predicted classes, of boxes and of pixels."""
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from mmdet.structures import DetDataSample
from mmengine.dataset import BaseDataset
from mmengine.logging import MessageHub
from mmengine.structures import InstanceData, PixelData
from mmseg.evaluation import IoUMetric
from mmseg.structures import SegDataSample

from openmmlab_runs.evaluation.confusion import Confusion, match_boxes, match_pixels
from openmmlab_runs.hooks import report


def test_a_table_is_aligned_and_marks_what_is_missing() -> None:
    assert report.table([('validation after', 9, 10), ('mAP', 0.5, -1.), ('mIoU', 87.6543, float('nan'))]) == (
        'validation after       9  10\n'
        'mAP                0.500   -\n'
        'mIoU              87.654   -')
    assert report.table([('a', 'b [c] :d:'), ('longer', 'e')]) == 'a       b [c] :d:\nlonger  e'


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


BOX, BESIDE, NEAR, FAR = [0., 0., 10., 10.], [0., 0., 10., 8.], [0., 0., 10., 6.], [50., 50., 60., 60.]
# No class, after classes 0 and 1.
NONE = 2


def annotated(bbox: list[float], label: int, is_ignored: bool = False) -> dict[str, Any]:
    return dict(bbox=bbox, bbox_label=label, ignore_flag=int(is_ignored))


@pytest.mark.parametrize('found, boxes, pairs', [
    ([], [], []),
    ([], [annotated(BOX, 1)], [(1, NONE)]),
    ([(BESIDE, 1, 0.9)], [annotated(BOX, 0)], [(0, 1)]),
    ([(BESIDE, 1, 0.2)], [annotated(BOX, 0)], [(0, NONE)]),  # a low score
    ([(BOX, 1, 0.9)], [annotated(FAR, 0), annotated([0., 0., 10., 4.], 1)], [(0, NONE), (1, NONE), (NONE, 1)]),
    # The better score takes the box, the other finds none, or the next one.
    ([(NEAR, 1, 0.8), (BESIDE, 0, 0.9)], [annotated(BOX, 0)], [(0, 0), (NONE, 1)]),
    ([(NEAR, 1, 0.8), (BOX, 0, 0.9)], [annotated(BESIDE, 1), annotated(BOX, 0)], [(0, 0), (1, 1)]),
    # All boxes on an ignored one are left out, and a free one beside it is found.
    ([(BOX, 1, 0.9), (BOX, 0, 0.8)], [annotated(BOX, 0, is_ignored=True)], []),
    ([(FAR, 1, 0.9)], [annotated(BOX, 0, is_ignored=True), annotated(FAR, 1)], [(1, 1)]),
    ([(BOX, 7, 0.9)], [annotated(BOX, 0)], [(0, NONE)])])  # a head with more classes than the data
def test_boxes_are_matched_in_the_order_of_their_scores(found: list, boxes: list, pairs: list) -> None:
    sample = DetDataSample(pred_instances=InstanceData(
        bboxes=torch.tensor([box for box, _, _ in found]).reshape(-1, 4),
        labels=torch.tensor([label for _, label, _ in found], dtype=torch.long),
        scores=torch.tensor([score for _, _, score in found])))
    counts = match_boxes(sample.pred_instances, boxes, NONE)
    assert sorted(map(tuple, counts.nonzero().tolist())) == sorted(pairs) and counts.sum() == len(pairs)


def test_images_without_a_path_or_boxes_are_left_out_and_data_are_read_once() -> None:
    """The first of two images has a path."""
    data = BaseDataset(lazy_init=True, metainfo=dict(classes=('a',)))
    data.load_data_list = lambda: [dict(img_path='0.png', instances=[annotated(BOX, 0)]), dict(instances=[])]
    data.full_init()
    data.get_data_info = Mock(side_effect=data.get_data_info)
    confusion = Confusion(SimpleNamespace(
        dataloader=SimpleNamespace(dataset=data), evaluator=SimpleNamespace(metrics=[])))
    empty = InstanceData(bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long), scores=torch.zeros(0))
    confusion.add([DetDataSample(pred_instances=empty, metainfo=meta)
                   for meta in ({}, dict(img_path='0.png'), dict(img_path='1.png'), dict(img_path='1.png'))])
    assert {*confusion.counts} == {'0.png'} and data.get_data_info.call_count == 2


def test_pixels_are_counted_as_by_mmseg() -> None:
    true, predicted = torch.randint(4, (2, 1, 20, 30))
    true[true == 3] = 255  # ignored; the prediction may be another class than those of the data
    sample = SegDataSample(gt_sem_seg=PixelData(data=true), pred_sem_seg=PixelData(data=predicted))
    counts = match_pixels(sample, 3, 255)
    hits, union, _, area = IoUMetric.intersect_and_union(predicted, true, 3, 255)
    assert counts.diagonal()[:3].tolist() == hits.tolist() and counts.sum(1)[:3].tolist() == area.tolist()
    assert (counts.sum(0) + counts.sum(1) - counts.diagonal())[:3].tolist() == union.tolist()
    assert counts[3].sum() == 0 and counts[:, 3].sum() > 0
