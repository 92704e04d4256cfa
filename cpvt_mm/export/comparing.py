"""Describes an exported file, and compares it with its model."""
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import Tensor, nn

from cpvt_mm.export.detector import Detector
from cpvt_mm.export.exporting import Run, flatten, in_channels
from cpvt_mm.tokens.batch_info import BatchInfo
from cpvt_mm.version import __version__
from openmmlab_tools.checkpoints.loading import bands_loader, normalization
from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.data.datasets import build_unread
from openmmlab_tools.errors import UserError, as_sentence
from openmmlab_tools.registry import in_scope


def describe(cfg: Config) -> dict[str, str]:
    """Describes the origin of an exported model and the normalization of its images.

    The input is `(pixels - mean) / std` per channel, with pixels from 0 to 255; `mean` and `std` are JSON lists in the
    order of `channels`: 'RGB', 'BGR', or 'file' for `LoadBandsFromFile`, whose pixels have any range.
    """
    mean, std, is_rgb = normalization(cfg)
    order = 'file' if bands_loader(cfg.get('test_dataloader')) else 'RGB' if is_rgb else 'BGR'
    return dict(config=Path(cfg.filename).stem, version=f'cpvt_mm {__version__}',
                layout='float32, (batch, channel, height, width)', channels=order,
                mean=json.dumps(mean), std=json.dumps(std))


def describe_classes(cfg: Config, checkpoint: str | Path | None = None) -> dict[str, str]:
    """Describes a segmentor's or detector's known `classes` and `palette` (RGB) as JSON lists.

    They are from the checkpoint, or else from the `metainfo` of the config's test dataset.
    """
    meta = (read_checkpoint(checkpoint).get('meta') or {}).get('dataset_meta') if checkpoint else None
    if not meta and cfg.get('test_dataloader'):
        with in_scope(cfg.default_scope):
            meta = build_unread(cfg.test_dataloader.dataset).metainfo
    return {key: json.dumps(meta[key]) for key in ('classes', 'palette') if meta and meta.get(key)}


# Batch, height and width. There are single pixels, sides that are multiples of 32 and others, portraits, landscapes and
# squares.
SHAPES = ((1, 1, 1), (2, 1, 70), (1, 33, 47), (3, 97, 61), (1, 64, 64), (2, 128, 96), (1, 224, 224), (1, 200, 333),
          (2, 161, 255), (1, 320, 256))
# Largest differences that are small: of values, since float32 has about 7 digits, and of boxes, scores and masks.
TOLERANCE = 1e-4
DETECTION_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Difference:
    """The difference between two models on one batch."""
    shape: tuple[int, int, int]  # batch, height, width
    largest: float  # of two values; of boxes: of pixels, scores or other values. inf: no counterpart
    scale: float = 1.  # largest absolute value in the eager model's outputs
    count: int | None = None  # number of compared boxes; None if the model is no detector

    @property
    def is_small(self) -> bool:
        """Whether `largest` is at most TOLERANCE * max(scale, 1), or DETECTION_TOLERANCE for boxes."""
        limit = TOLERANCE * max(self.scale, 1.) if self.count is None else DETECTION_TOLERANCE
        return self.largest <= limit  # False for NaN


def compare(model: nn.Module, run: Run, image: Tensor | None = None) -> Iterator[Difference]:
    """Compares the outputs of the eager `model` (see `load_part`) and the exported one, or the boxes of a `Detector`.

    The batches are those of `batches`. Raises a UserError if the exported model fails, or a detector finds no box.
    """
    total, detector = 0, model if isinstance(model, Detector) else None
    for batch in batches(in_channels(model), image):
        count, height, width = shape = batch.shape[0], batch.shape[2], batch.shape[3]
        with as_sentence(f'the exported model does not run on {count} x {height} x {width}', 'nothing is written'):
            outputs = run(batch)
        if detector:
            distances, boxes = _compare_boxes(detector, outputs, batch)
            total += boxes
            yield Difference(shape, _max(distances), count=boxes)
            continue
        with torch.no_grad():
            expected = flatten(model(batch))
        is_alike = [x.shape for x in outputs] == [x.shape for x in expected]
        yield Difference(shape, _max([x - y for x, y in zip(outputs, expected, strict=True)]) if is_alike else
                         float('inf'), _max(expected))
    if detector and not total:
        raise UserError(f'the detector finds no box with a score above {detector.test_cfg.score_thr}, so nothing could '
                        'be compared: pass an --image in which it finds boxes.')


def check(differences: Sequence[Difference]) -> None:
    """Raises a UserError if a difference is not small."""
    large = [difference for difference in differences if not difference.is_small]
    if large:
        batch, height, width = large[0].shape
        raise UserError(f'the exported model differs by {large[0].largest:.1e} on {batch} x {height} x {width}, and by '
                        f'too much at {len(large)} of {len(differences)} sizes: nothing is written.')


def batches(channels: int, image: Tensor | None = None) -> Iterator[Tensor]:
    """Yields a batch of each of the ten sizes in SHAPES: normal noise, or `image`, `(1, channels, H, W)`, resized.

    The second image of a batch is flipped horizontally, the third vertically. `image` is normalized.
    """
    generator = torch.Generator().manual_seed(0)
    for count, height, width in SHAPES:
        if image is None:
            batch = torch.randn(count, channels, height, width, generator=generator)
        else:
            resized = F.interpolate(image, (height, width), mode='bilinear', antialias=True)
            batch = torch.cat([resized, resized.flip(3), resized.flip(2)][:count])
        # A backbone with padding='exact' needs the sizes: the images fill the batch.
        yield BatchInfo.of_images(batch, [(height, width)] * count).attach(batch)


def _max(tensors: Sequence[Tensor]) -> float:
    """Returns the largest absolute value; NaN if there is one, which Python's `max` could pass over."""
    return torch.cat([x.flatten() for x in tensors]).abs().max().item()


def _compare_boxes(detector: Detector, outputs: list[Tensor], batch: Tensor) -> tuple[list[Tensor], int]:
    """Returns the distances of an exported detector's boxes from mmdet's, and their number."""
    dets, labels, images, *others = outputs
    by_image = ([x[images == i] for x in (dets, labels, *others)] for i in range(len(batch)))
    pairs = list(zip(detector.expected(batch), by_image, strict=True))
    ours = [_differences(a, b, detector) for a, b in pairs]
    return [batch.new_zeros(1), *ours, *(_differences(b, a, detector) for a, b in pairs)], sum(map(len, ours))


def _differences(a: list[Tensor], b: list[Tensor], detector: Detector) -> Tensor:
    """Returns the distance to the counterpart in `b`, `(N,)`, for each box of `a` that needs one.

    They are boxes with scores `(N, 5)`, labels `(N,)` and other values, `(N, ...)`.
    """
    cfg, scores = detector.test_cfg, a[0][:, 4]
    lowest = max(cfg.score_thr, scores.min().item()) if len(scores) == cfg.max_per_img else cfg.score_thr
    is_nan = sum(x.isnan().flatten(1).any(1) for x in (a[0], *a[2:]))
    dets, labels, *others = (x[(scores > lowest + DETECTION_TOLERANCE) | (is_nan > 0)] for x in a)
    if not len(dets) or not len(b[0]):
        return dets.new_full((len(dets),), torch.inf)
    apart = (dets[:, None] - b[0]).abs().amax(2).masked_fill(labels[:, None] != b[1], torch.inf)
    nearest, places = apart.min(dim=1)
    for ours, theirs in zip(others, b[2:], strict=True):
        nearest = torch.maximum(nearest, (ours - theirs[places]).abs().flatten(1).amax(1))
    return nearest
