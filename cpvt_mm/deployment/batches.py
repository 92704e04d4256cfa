"""Batches of ten sizes, for comparing exported models with eager models."""
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_mm.errors import UserError, first_line

Run = Callable[[Tensor], list[Tensor]]

# Batch, height and width. There are single pixels, sides that are multiples of 32 and others, portraits, landscapes and
# squares.
SHAPES = ((1, 1, 1), (2, 1, 70), (1, 33, 47), (3, 97, 61), (1, 64, 64), (2, 128, 96), (1, 224, 224), (1, 200, 333),
          (2, 161, 255), (1, 320, 256))


def batches(channels: int, image: Tensor | None = None) -> Iterator[Tensor]:
    """Yields a batch of each of the ten sizes in SHAPES.

    Args:
        channels: Channels of the batches.
        image: `(1, channels, H, W)`, normalized. It is resized to each size. The second image of a batch is flipped
            horizontally, the third vertically. Defaults to None: normal noise, which resembles normalized pixels.
    """
    generator = torch.Generator().manual_seed(0)
    for count, height, width in SHAPES:
        if image is None:
            yield torch.randn(count, channels, height, width, generator=generator)
        else:
            resized = F.interpolate(image, (height, width), mode='bilinear', antialias=True)
            yield torch.cat([resized, resized.flip(3), resized.flip(2)])[:count]


def run_or_explain(run: Run, batch: Tensor) -> list[Tensor]:
    """Runs an exported model on a batch; raises a UserError if it fails."""
    try:
        return run(batch)
    except Exception as error:  # each runtime has its own exceptions
        count, height, width = shape_of(batch)
        raise UserError(f'the exported model does not run on {count} x {height} x {width} ({first_line(error)}): '
                        'nothing is written.') from error


def shape_of(batch: Tensor) -> tuple[int, int, int]:
    """Returns batch, height and width."""
    return batch.shape[0], batch.shape[2], batch.shape[3]
