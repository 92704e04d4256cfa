"""The GPU of these tests: each gets it from one fixture, which skips where there is none.

`CPVT_MM_TEST_DEVICE=cpu` puts the CPU in its place, to try the tests themselves. What only a GPU has is skipped then.
"""
import os
from collections.abc import Iterator

import pytest
import torch

from lab.backbones import allow_tf32


@pytest.fixture(scope='session')
def device() -> torch.device:
    name = os.environ.get('CPVT_MM_TEST_DEVICE', 'cuda')
    if name == 'cuda' and not torch.cuda.is_available():
        pytest.skip('torch finds no GPU here')
    return torch.device('cuda', 0) if name == 'cuda' else torch.device(name)


@pytest.fixture
def gpu(device: torch.device) -> torch.device:
    """The device, for what only a GPU has."""
    if device.type != 'cuda':
        pytest.skip('only a GPU has what this test asks for')
    return device


@pytest.fixture(autouse=True)
def without_tf32() -> Iterator[None]:
    """Products of float32 keep all digits."""
    with allow_tf32(False):
        yield
