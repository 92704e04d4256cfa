"""Suppression and overlap of boxes, `(x1, y1, x2, y2)` in pixels.

mmcv compares overlaps with a float32 threshold: 0.3 is 0.30000001. It adds `offset` (0 or 1) to widths and heights.
"""
import numpy as np
import torch
import torchvision
from torch import Tensor

from .gradients import full

__all__ = ['bbox_overlaps', 'nms', 'nms_match', 'softnms']


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Returns the indices `(K,)` of the `boxes (N, 4)` that are kept, by falling `scores (N,)`."""
    boxes, scores = full(boxes), full(scores)
    if offset:
        boxes = torch.cat([boxes[:, :2], boxes[:, 2:] + offset], 1)
    # mmcv does not sort equal scores stably, torchvision does: what comes sorted, it leaves as it is.
    order = scores.sort(0, descending=True)[1]
    indices = torchvision.ops.nms(boxes[order], scores[order].to(boxes.dtype), float(np.float32(iou_threshold)))
    return order[indices]


def softnms(boxes: Tensor, scores: Tensor, dets: Tensor, iou_threshold: float, sigma: float, min_score: float,
            method: int, offset: int) -> Tensor:
    """Lowers the scores of boxes that overlap a box with a higher score (Bodla et al. 2017, arXiv 1704.04503, figure
    2).

    Args:
        boxes: `(N, 4)`, on the CPU.
        scores: `(N,)`.
        dets: `(N, 5)`; its first K rows are filled with the kept boxes and their new scores.
        iou_threshold: From which overlap on the first two methods act.
        sigma: Width of the third method.
        min_score: Boxes with a lower score are dropped.
        method: 0 drops, 1 scales by 1 - IoU, 2 scales by exp(-IoU^2 / sigma).
        offset: Added to widths and heights.

    Returns:
        The indices `(K,)` of the kept boxes.
    """
    rows = torch.cat([boxes, scores[:, None]], 1).float().numpy()
    indices = np.arange(len(rows))
    done = 0
    while done < len(indices):
        # The best box and the first of the rest change places: of equal scores, mmcv then takes the first.
        best = done + int(rows[indices[done:], 4].argmax())
        indices[[done, best]] = indices[[best, done]]
        first, rest = indices[done], indices[done + 1:]
        iou = _iou(rows[first], rows[rest], offset)
        if method == 2:
            weight = np.exp(-(iou * iou) / np.float32(sigma))
        else:
            weight = np.where(iou >= np.float32(iou_threshold), 1 - iou if method else 0, 1)
        rows[rest, 4] *= weight.astype(np.float32)
        done += 1
        indices = np.concatenate([indices[:done], _without(rest, rows[rest, 4] < np.float32(min_score))])
    dets[:len(indices)] = torch.from_numpy(rows[indices]).to(dets.dtype)
    return torch.from_numpy(indices)


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Returns for each box that NMS keeps a list of indices: the box itself, and the boxes that it suppresses. `dets`
    is `(N, 5)`.
    """
    rows = dets.float().cpu().numpy()
    order = dets[:, 4].sort(descending=True)[1].cpu().numpy()
    groups = []
    while len(order):
        first, rest = order[0], order[1:]
        hit = _iou(rows[first], rows[rest], 0) >= np.float32(iou_threshold)
        groups.append([int(first), *rest[hit].tolist()])
        order = rest[~hit]
    return groups


def bbox_overlaps(bboxes1: Tensor, bboxes2: Tensor, ious: Tensor, mode: int, aligned: bool, offset: int) -> None:
    """Fills `ious` with IoU (`mode` 0), or the share of the first box (1): `(N,)` if `aligned`, else `(N, M)`."""
    first, second = full(bboxes1), full(bboxes2)
    area, other_area = ((b[:, 2] - b[:, 0] + offset) * (b[:, 3] - b[:, 1] + offset) for b in (first, second))
    if not aligned:
        first, area = first[:, None], area[:, None]
    sides = torch.minimum(first[..., 2:], second[:, 2:]) - torch.maximum(first[..., :2], second[:, :2]) + offset
    shared = sides.clamp(min=0).prod(-1)
    ious.copy_(shared / (area if mode else area + other_area - shared))


def _iou(box: np.ndarray, boxes: np.ndarray, offset: int) -> np.ndarray:
    """Returns the IoU of a box with others in float32, in the order of mmcv's operations."""
    add = np.float32(offset)
    sides = np.minimum(box[2:4], boxes[:, 2:4]) - np.maximum(box[:2], boxes[:, :2]) + add
    shared = sides.clip(min=0).prod(1)
    area, areas = ((b[..., 2] - b[..., 0] + add) * (b[..., 3] - b[..., 1] + add) for b in (box, boxes))
    with np.errstate(invalid='ignore', divide='ignore'):  # empty boxes
        return shared / (area + areas - shared)


def _without(indices: np.ndarray, dropped: np.ndarray) -> np.ndarray:
    """Drops entries in the order of mmcv: the last entry moves to the place of the dropped entry."""
    left, at = list(zip(indices.tolist(), dropped.tolist(), strict=True)), 0
    while at < len(left):
        if left[at][1]:
            left[at] = left[-1]
            left.pop()
        else:
            at += 1
    return np.array([index for index, _ in left], dtype=np.int64)
