"""Sizes of images in training, and how much of a batch is padding."""
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmmlab_tools.own_data.image_sizes import Fit, name_sizes, padding_share

SAME, TURNED = [(80, 64)] * 4, [(64, 32), (32, 64)]


@pytest.mark.parametrize('sizes, fit, batch, expected, within', [
    (SAME, Fit((80, 64)), 8, 0., 1e-9),
    (TURNED, Fit((64, 32)), 1, 0., 1e-9),
    (TURNED, Fit((64, 64), crop=32), 2, 0., 1e-9),
    # Two of a batch differ with probability 1/2; then 4 of 8 cells are padding: 2 of 6 on average. The share of 1000
    # batches that differ has a standard deviation of 0.016, and the result changes by 0.44 of it.
    (TURNED, Fit((64, 32)), 2, 1 / 3, 5 * 0.016 * 0.45)])
def test_padding_is_the_share_of_pixels_that_only_batches_add(
        sizes: list[tuple[int, int]], fit: Fit, batch: int, expected: float, within: float) -> None:
    data = SimpleNamespace(splits=dict(train=[SimpleNamespace(size=size) for size in sizes]))
    assert padding_share(data, fit, batch) == pytest.approx(expected, abs=within)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1))
def test_sizes_that_are_told_occur(sizes: list[tuple[int, int]]) -> None:
    told = [tuple(map(int, text.split(' x '))) for text in name_sizes(np.array(sizes))]
    assert {*told} <= {*sizes}
    areas, all_areas = ([width * height for width, height in some] for some in (told, sizes))
    assert (areas[0], areas[2]) == (min(all_areas), max(all_areas)) and areas == sorted(areas)
