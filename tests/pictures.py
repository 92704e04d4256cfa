"""Images of tests, and how painted ones are compared."""
from pathlib import Path

import numpy as np
from PIL import Image

# Versions of matplotlib before 3.11 move parts of an image by a pixel, and mmdet draws an image up to three times.
MOVED = 3


def random_image(path: Path, height: int, width: int) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def is_drawn(path: Path) -> bool:
    """Tells whether a file is a PNG with more than one shade."""
    with Image.open(path) as image:
        return image.format == 'PNG' and np.ptp(np.asarray(image.convert('L'))) > 0


def is_painted(painted: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Tells which pixels are painted over, whatever the version of matplotlib: those that look like none around.

    Args:
        painted: `(H, W, 3)`, uint8. Its values may be rounded.
        image: The image before, of the same shape.

    Returns:
        `(H, W)`, bool.
    """
    (height, width), side = image.shape[:2], 2 * MOVED + 1
    around = np.pad(image.astype(int), ((MOVED, MOVED), (MOVED, MOVED), (0, 0)), mode='edge')
    return np.all([(abs(around[y:y + height, x:x + width] - painted) > 1).any(axis=2)
                   for y in range(side) for x in range(side)], axis=0)
