from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import Trained

# The two toy models after training, by the library.
Models = dict[str, Trained]


def random_image(path: Path, height: int, width: int) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image of 200 x 100 pixels (width x height)."""
    random_image(tmp_path / 'image.png', 100, 200)
    return tmp_path / 'image.png'


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A file that is no image."""
    path = tmp_path / 'broken.png'
    path.write_text('no image')
    return path
