"""How far the boxes of two detectors are apart: each box that both must find, from its counterpart."""
from collections.abc import Sequence

import torch
from torch import Tensor

from .detector import Detector

# The largest difference of boxes (pixels), scores and masks that is small.
DETECTION_TOLERANCE = 1e-3


def distances(detector: Detector, expected: Sequence[list[Tensor]], outputs: list[Tensor]) -> tuple[Tensor, int]:
    """Returns the distance of each box to its counterpart, `(N,)`, and the number of boxes that mmdet predicts.

    Args:
        detector: The exported detector.
        expected: mmdet's boxes of each image, from `Detector.expected`.
        outputs: The outputs of the exported file for the batch.
    """
    dets, labels, images, *others = outputs
    pairs = [(reference, [x[images == i] for x in (dets, labels, *others)]) for i, reference in enumerate(expected)]
    missing = [_apart(reference, ours, detector) for reference, ours in pairs]
    added = [_apart(ours, reference, detector) for reference, ours in pairs]
    return torch.cat([dets.new_zeros(1), *missing, *added]), sum(map(len, missing))


def _apart(a: list[Tensor], b: list[Tensor], detector: Detector) -> Tensor:
    """Returns for the boxes in `a` that need a counterpart in `b` the distance to it, `(N,)`.

    Both lists contain boxes with scores `(N, 5)`, labels `(N,)`, and other values `(N, ...)`.
    """
    cfg, scores = detector.test_cfg, a[0][:, 4]
    lowest = max(cfg.score_thr, scores.min().item()) if len(scores) == cfg.max_per_img else cfg.score_thr
    is_nan = sum(x.isnan().flatten(1).any(1) for x in (a[0], *a[2:]))
    dets, labels, *others = (x[(scores > lowest + DETECTION_TOLERANCE) | (is_nan > 0)] for x in a)
    if not len(dets) or not len(b[0]):
        return dets.new_full((len(dets),), torch.inf)
    differences = (dets[:, None] - b[0]).abs().amax(2).masked_fill(labels[:, None] != b[1], torch.inf)
    nearest, places = differences.min(dim=1)
    for ours, reference in zip(others, b[2:], strict=True):
        nearest = torch.maximum(nearest, (ours - reference[places]).abs().flatten(1).amax(1))
    return nearest
