"""Compares an exported file with its model at ten sizes, in each runtime."""
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.tokens.batch_info import BatchInfo
from openmmlab_tools.errors import UserError, as_sentence
from openmmlab_tools.exported.runtimes import Run, flatten

from .boxes import DETECTION_TOLERANCE, distances
from .detector import Detector
from .parts import in_channels

# Batch, height and width. There are single pixels, sides that are multiples of 32 and others, portraits, landscapes and
# squares.
SHAPES = ((1, 1, 1), (2, 1, 70), (1, 33, 47), (3, 97, 61), (1, 64, 64), (2, 128, 96), (1, 224, 224), (1, 200, 333),
          (2, 161, 255), (1, 320, 256))
# The largest difference of values that is small, since float32 has about 7 digits.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Difference:
    """The difference between an exported file and its model on one batch, in one runtime."""
    shape: tuple[int, int, int]  # batch, height, width
    runtime: str
    largest: float  # of two values; of boxes: of pixels, scores or other values. inf: no counterpart
    scale: float = 1.  # largest absolute value in the model's outputs
    count: int | None = None  # number of compared boxes; None if the model is no detector

    @property
    def is_small(self) -> bool:
        """True if `largest` is at most TOLERANCE * max(scale, 1), or DETECTION_TOLERANCE for boxes."""
        limit = TOLERANCE * max(self.scale, 1.) if self.count is None else DETECTION_TOLERANCE
        return self.largest <= limit  # False for NaN


def compare(model: nn.Module, runs: Mapping[str, Run], image: Tensor | None = None) -> Iterator[list[Difference]]:
    """Compares the outputs of `model` (see `load_part`) and of its file in each runtime, or the boxes of a `Detector`.

    Yields the differences of all runtimes for each batch of `batches`. Raises a UserError if the exported model fails,
    or a detector finds no box.
    """
    total, detector = 0, model if isinstance(model, Detector) else None
    for batch in batches(in_channels(model), image):
        count, height, width = shape = batch.shape[0], batch.shape[2], batch.shape[3]
        outputs = {}
        for runtime, run in runs.items():
            with as_sentence(f'the exported model does not run on {count} x {height} x {width} in {runtime}',
                             'nothing is written'):
                outputs[runtime] = run(batch)
        if detector:
            boxes = detector.expected(batch)
            apart = {runtime: distances(detector, boxes, given) for runtime, given in outputs.items()}
            yield [Difference(shape, runtime, _max([x]), count=number) for runtime, (x, number) in apart.items()]
            total += sum(number for _, number in apart.values())
        else:
            with torch.no_grad():
                expected = flatten(model(batch))
            yield [Difference(shape, runtime, _largest(given, expected), _max(expected))
                   for runtime, given in outputs.items()]
    if detector and not total:
        raise UserError(f'the detector finds no box with a score above {detector.test_cfg.score_thr}, so nothing could '
                        'be compared: pass an --image in which it finds boxes.')


def check(differences: Sequence[Difference]) -> None:
    """Raises a UserError if a difference is not small."""
    large = [difference for difference in differences if not difference.is_small]
    if large:
        batch, height, width = large[0].shape
        raise UserError(f'the exported model differs by {large[0].largest:.1e} on {batch} x {height} x {width} in '
                        f'{large[0].runtime}, and by too much in {len(large)} of {len(differences)} comparisons: '
                        'nothing is written.')


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


def _largest(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Returns the largest difference; inf if the shapes differ."""
    if [x.shape for x in outputs] != [x.shape for x in expected]:
        return float('inf')
    return _max([x - y for x, y in zip(outputs, expected, strict=True)])


def _max(tensors: Sequence[Tensor]) -> float:
    """Returns the largest absolute value, or NaN if a value is NaN, which Python's `max` could skip."""
    return torch.cat([x.flatten() for x in tensors]).abs().max().item()
