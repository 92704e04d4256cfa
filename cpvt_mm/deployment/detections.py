"""Compares the boxes of an exported detector with the boxes of mmdet."""
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cpvt_mm.errors import UserError

from .batches import Run, batches, run_or_explain, shape_of
from .detector import Detector
from .parts import in_channels

TOLERANCE = 1e-3


@dataclass(frozen=True)
class DetectionDifference:
    """The difference between the boxes of two detectors on one batch.

    Attributes:
        shape: Batch, height and width.
        largest: Largest absolute difference of coordinates (in pixels), scores or mask probabilities; infinite if a box
            has no counterpart of its label.
        count: Number of compared boxes.
    """
    shape: tuple[int, int, int]
    largest: float
    count: int

    @property
    def is_small(self) -> bool:
        """Whether `largest` is at most TOLERANCE."""
        return self.largest <= TOLERANCE

    @property
    def row(self) -> dict[str, str]:
        """The cells of a table row, by column name."""
        batch, height, width = self.shape
        return {'batch': str(batch), 'height x width': f'{height} x {width}',
                'largest difference': f'{self.largest:.1e}', 'boxes': str(self.count)}


class Found(NamedTuple):
    """Detections of an image: `(N, 5)`, `(N,)` and `(N, h, w)`; masks are `(N, 0, 0)` if the detector has none."""
    dets: Tensor
    labels: Tensor
    masks: Tensor


def compare_detections(detector: Detector, run: Run, image: Tensor | None = None) -> Iterator[DetectionDifference]:
    """Compares the exported detector with mmdet's `predict` at the ten sizes of SHAPES.

    Each box needs a counterpart of the same label among the boxes of the other detector. Boxes that rounding may add or
    remove need none. Their score is within TOLERANCE of `score_thr`, or, if there are `max_per_img` boxes, of the
    lowest score.

    Args:
        detector: The eager detector; its `model` predicts.
        run: The exported detector.
        image: See `batches`. Defaults to None: noise.

    Raises:
        UserError: If the exported detector fails at a size, or no size has a box to compare.
    """
    total = 0
    for batch in batches(in_channels(detector), image):
        expected = _predict(detector, batch)
        outputs = _by_image(run_or_explain(run, batch), len(batch))
        pairs = [pair for a, b in zip(expected, outputs, strict=True) for pair in ((a, b), (b, a))]
        differences = [_differences(a, b, detector) for a, b in pairs]
        count = sum(map(len, differences[::2]))
        total += count
        yield DetectionDifference(shape_of(batch), max((x.max().item() for x in differences if len(x)), default=0.),
                                  count)
    if not total:
        raise UserError(f'the detector finds no box with a score above {detector.test_cfg.score_thr}, so nothing could '
                        'be compared: pass an --image in which it finds boxes.')


def _predict(detector: Detector, batch: Tensor) -> list[Found]:
    from mmdet.structures import DetDataSample
    size, logits = tuple(batch.shape[2:]), []
    meta = dict(img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size, scale_factor=(1., 1.))
    model = detector.model
    has_masks = getattr(model, 'with_mask', False)
    if has_masks:  # predict pastes masks into the image; the hook gets them before that
        hook = model.roi_head.mask_head.register_forward_hook(lambda module, inputs, output: logits.append(output))
    with torch.no_grad():
        samples = model.predict(batch, [DetDataSample(metainfo=meta) for _ in batch], rescale=False)
    if has_masks:
        hook.remove()
    found = [sample.pred_instances for sample in samples]
    labels = torch.cat([x.labels for x in found])
    masks = batch.new_zeros(len(labels), 0, 0)
    if logits:
        of_class = torch.zeros_like(labels) if model.roi_head.mask_head.class_agnostic else labels
        masks = logits[0][torch.arange(len(labels)), of_class].sigmoid()
    counts = [len(x) for x in found]
    return [Found(torch.cat([x.bboxes, x.scores[:, None]], 1), x.labels, mask)
            for x, mask in zip(found, masks.split(counts), strict=True)]


def _by_image(outputs: list[Tensor], batch: int) -> list[Found]:
    dets, labels, images = outputs[:3]
    masks = outputs[3] if len(outputs) > 3 else dets.new_zeros(len(dets), 0, 0)
    return [Found(dets[images == i], labels[images == i], masks[images == i]) for i in range(batch)]


def _differences(a: Found, b: Found, detector: Detector) -> Tensor:
    """Returns the distance to the counterpart in `b`, `(N,)`, for each box of `a` that needs one."""
    cfg, scores = detector.test_cfg, a.dets[:, 4]
    lowest = max(cfg.score_thr, scores.min().item()) if len(scores) == cfg.max_per_img else cfg.score_thr
    must = scores > lowest + TOLERANCE
    dets, labels, masks = (x[must] for x in a)
    if not len(dets) or not len(b.dets):
        return dets.new_full((len(dets),), torch.inf)
    apart = (dets[:, None] - b.dets).abs().amax(2).masked_fill(labels[:, None] != b.labels, torch.inf)
    nearest, places = apart.min(dim=1)
    return torch.maximum(nearest, (masks - b.masks[places]).abs().flatten(1).amax(1)) if masks.numel() else nearest
