"""Fixtures that several test files share."""
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cpvt_mm import PyramidCPVT

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / 'tests/golden'

# The narrow pyramid of the reference outputs.
NARROW = dict(embed_dims=(16, 32, 40, 64), depths=(2, 2, 3, 2), num_heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4),
              sr_ratios=(8, 4, 2, 1))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def backbone() -> PyramidCPVT:
    """The narrow pyramid with random weights, in eval mode."""
    return PyramidCPVT(NARROW).eval()


def golden_cases(name: str) -> list[tuple[Tensor, list[Tensor]]]:
    """Pairs of an input and its four reference outputs, one for each size."""
    arrays = np.load(GOLDEN / f'{name}_io.npz')
    sizes = [key.removeprefix('input_') for key in arrays if key.startswith('input_')]
    return [(torch.from_numpy(arrays[f'input_{size}']), [torch.from_numpy(arrays[f'out{i}_{size}']) for i in range(4)])
            for size in sizes]
