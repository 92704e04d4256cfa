"""Compares an exported model with the eager model."""
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cpvt_mm.errors import UserError

from .batches import Run, batches, run_or_explain, shape_of
from .detections import DetectionDifference, compare_detections
from .detector import Detector
from .parts import in_channels

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Difference:
    """The difference between two models on one batch.

    Attributes:
        shape: Batch, height and width.
        largest: Largest absolute difference of two values; infinite if the outputs differ in number or shape.
        scale: Largest absolute value in the eager model's outputs.
    """
    shape: tuple[int, int, int]
    largest: float
    scale: float

    @property
    def is_small(self) -> bool:
        """Whether `largest` is at most TOLERANCE * max(scale, 1), since float32 has about 7 digits."""
        return self.largest <= TOLERANCE * max(self.scale, 1.)  # False for NaN

    @property
    def row(self) -> dict[str, str]:
        """The cells of a table row, by column name."""
        batch, height, width = self.shape
        return {'batch': str(batch), 'height x width': f'{height} x {width}',
                'largest difference': f'{self.largest:.1e}', 'largest output': f'{self.scale:.2g}'}


def compare(model: nn.Module, run: Run, image: Tensor | None = None) -> Iterator[Difference | DetectionDifference]:
    """Compares outputs at the ten sizes of SHAPES; for a `Detector`, compares boxes with `compare_detections`.

    Args:
        model: The eager model; see `load_part`.
        run: The exported model.
        image: See `batches`. Defaults to None: noise.

    Raises:
        UserError: If the exported model does not run at a size.
    """
    if isinstance(model, Detector):
        yield from compare_detections(model, run, image)
        return
    for batch in batches(in_channels(model), image):
        with torch.no_grad():
            expected = tree_leaves(model(batch))
        outputs = run_or_explain(run, batch)
        yield Difference(shape_of(batch), _largest(outputs, expected), max(map(_max, expected)))


def _largest(outputs: list[Tensor], expected: list[Tensor]) -> float:
    if [x.shape for x in outputs] != [x.shape for x in expected]:
        return float('inf')
    return max(_max(x - y) for x, y in zip(outputs, expected, strict=True))


def _max(x: Tensor) -> float:
    return x.abs().max().item()


def check(differences: Sequence[Difference | DetectionDifference]) -> None:
    """Raises a UserError if a difference is not small."""
    large = [difference for difference in differences if not difference.is_small]
    if large:
        batch, height, width = large[0].shape
        raise UserError(f'the exported model differs by {large[0].largest:.1e} on {batch} x {height} x {width}, and by '
                        f'too much at {len(large)} of {len(differences)} sizes: nothing is written.')
