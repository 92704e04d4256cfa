"""Stages that encodings are built for."""
import pytest

from cpvt_mm import StageSpec


@pytest.fixture
def stage() -> StageSpec:
    return StageSpec(embed_dims=16, num_heads=2, depth=3, grid=(4, 6))
