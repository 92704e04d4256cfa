"""Comparing an exported model with the eager one."""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cpvt_mm.errors import UserError, first_line

from .parts import in_channels

Run = Callable[[Tensor], list[Tensor]]

TOLERANCE = 1e-4
# Batch, height and width: down to one pixel, sides that fill patches of 32 and that do not, upright, wide and square.
SHAPES = ((1, 1, 1), (2, 1, 70), (1, 33, 47), (3, 97, 61), (1, 64, 64), (2, 128, 96), (1, 224, 224), (1, 200, 333),
          (2, 161, 255), (1, 320, 256))


@dataclass(frozen=True)
class Difference:
    """The difference between two models on one batch of noise.

    Attributes:
        shape: Batch, height and width.
        largest: Absolute difference of two numbers; infinite where the outputs differ in number or shape.
        scale: The largest absolute number of the eager model's outputs.
    """
    shape: tuple[int, int, int]
    largest: float
    scale: float

    @property
    def is_small(self) -> bool:
        """Whether it is TOLERANCE at most, times the scale where that is above 1: float32 has 7 digits."""
        return self.largest <= TOLERANCE * max(self.scale, 1.)  # not if it is no number


def compare(model: nn.Module, run: Run) -> Iterator[Difference]:
    """Compares at the ten sizes of SHAPES, on normal noise, because normalized pixels are like that.

    Args:
        model: The eager model; see `load_part`.
        run: The exported one.

    Raises:
        UserError: If the exported model does not run at a size.
    """
    generator = torch.Generator().manual_seed(0)
    for batch, height, width in SHAPES:
        image = torch.randn(batch, in_channels(model), height, width, generator=generator)
        with torch.no_grad():
            expected = tree_leaves(model(image))
        try:
            outputs = run(image)
        except Exception as error:  # each runtime has its own
            raise UserError(f'the exported model does not run on {batch} x {height} x {width} ({first_line(error)}): '
                            'nothing is written.') from error
        yield Difference((batch, height, width), _largest(outputs, expected), max(map(_max, expected)))


def _largest(outputs: list[Tensor], expected: list[Tensor]) -> float:
    if [x.shape for x in outputs] != [x.shape for x in expected]:
        return float('inf')
    return max(_max(x - y) for x, y in zip(outputs, expected, strict=True))


def _max(x: Tensor) -> float:
    return x.abs().max().item()


def check(differences: Sequence[Difference]) -> None:
    """Raises a UserError if a difference is not small."""
    large = [difference for difference in differences if not difference.is_small]
    if large:
        batch, height, width = large[0].shape
        raise UserError(f'the exported model is off by {large[0].largest:.1e} on {batch} x {height} x {width}, and too '
                        f'far at {len(large)} of {len(differences)} sizes: nothing is written.')
