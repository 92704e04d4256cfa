"""Writes a toy dataset in which only the position matters: the class of a pixel is the quarter of the image it lies in.

The images are the same as in `toy_shapes`. Their content is independent of the quarter, so a model without position
information can only guess: a mIoU of 14.3 at random, and of 6.25 with always the same class.
"""
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.commands.toy_shapes import make_image, run, write_splits
from openmmlab_tools.errors import exit_on_error
from openmmlab_tools.files import write_image


def quarters(height: int, width: int) -> NDArray[np.uint8]:
    """Makes a label map `(height, width)`: 0 and 1 are the left and right upper quarter, 2 and 3 the lower quarters."""
    lower, right = np.arange(height) >= height / 2, np.arange(width) >= width / 2
    return (2 * lower[:, None] + right).astype(np.uint8)


def write_split(root: Path, split: str, count: int, seed: int) -> Iterator[int]:
    """Writes the images and label maps of one split; yields each index after writing it."""
    images, labels = root / 'images' / split, root / 'annotations' / split
    images.mkdir(parents=True)
    labels.mkdir(parents=True)
    for index in range(count):
        image, _, _ = make_image(np.random.default_rng([seed, sum(map(ord, split)), index]))
        write_image(images / f'{index:06d}.jpg', image)
        write_image(labels / f'{index:06d}.png', quarters(*image.shape[:2]))
        yield index


def write_toy_quarters(root: Path, num_train: int = 400, num_val: int = 50, seed: int = 0) -> Iterator[int]:
    """Writes the dataset in the layout of `toy_shapes`, see `write_splits`."""
    yield from write_splits(root, write_split, dict(num_train=num_train, num_val=num_val, seed=seed))


@exit_on_error
def main() -> None:
    run(__doc__, write_toy_quarters, 'data/toy_quarters')
