"""Fixtures with stock models, in place of the fixtures of the same names with backbones of `cpvt_mm`."""
from pathlib import Path

import pytest

from tests.helpers import Models, train_toys

from .toy import DETECTOR, SEGMENTOR, write_toy


@pytest.fixture(scope='session')
def toy_shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small toy dataset: 8 images to train on, 4 to validate."""
    root = tmp_path_factory.mktemp('data') / 'toy_shapes'
    write_toy(root)
    return root


@pytest.fixture(scope='session')
def trained(toy_shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The toy detector ('mmdet') and segmentor ('mmseg') after two iterations."""
    return train_toys(DETECTOR, SEGMENTOR, toy_shapes, tmp_path_factory.mktemp)
