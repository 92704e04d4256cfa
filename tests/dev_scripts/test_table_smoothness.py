import pytest
import torch

from table_smoothness import neighbour_correlation


def test_correlation_of_neighbours() -> None:
    signs = torch.ones(8, 8).index_fill(0, torch.arange(0, 8, 2), -1)
    halves = torch.ones(8, 8).index_fill(0, torch.arange(4), -1)
    assert neighbour_correlation((signs * signs.T)[..., None]) == pytest.approx(-1)  # a chessboard
    assert neighbour_correlation(signs[..., None]) == pytest.approx(0)  # stripes: -1 down, 1 across
    assert neighbour_correlation(halves[..., None]) == pytest.approx((5 / 7 + 1) / 2)  # one of seven steps differs
