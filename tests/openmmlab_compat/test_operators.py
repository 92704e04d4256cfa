"""mmcv's operators return what compiled ones returned, whichever provide them here."""
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.openmmlab_compat.cases import CASES, run

COMPILED = np.load(Path(__file__).with_name('compiled.npz'))
# Sums of at most some hundred products, in another order: a few roundings of the largest value. Compiled operators also
# sum in float16.
TOLERANCE = {torch.float16: 2 ** -6, torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.mark.parametrize('name', CASES)
def test_results_are_those_of_compiled_operators(name: str) -> None:
    stored = {key.rpartition('/')[2]: torch.from_numpy(COMPILED[key]) for key in COMPILED
              if key.rpartition('/')[0] == name}
    results = run(name)
    assert results.keys() == stored.keys()
    for key, wanted in stored.items():
        if wanted.dtype in TOLERANCE and wanted.numel():
            torch.testing.assert_close(results[key], wanted, rtol=0,
                                       atol=TOLERANCE[wanted.dtype] * wanted.abs().max().item())
        else:
            assert results[key].dtype == wanted.dtype
            assert results[key].tolist() == wanted.tolist()


def test_every_stored_result_belongs_to_a_case() -> None:
    assert {key.rpartition('/')[0] for key in COMPILED} == set(CASES)
