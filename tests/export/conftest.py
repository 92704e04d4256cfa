"""Exports are slow: models here are as small as can be."""
import pytest

from cpvt_mm import CPVT

SMALL = dict(embed_dims=24, depth=1, num_heads=3)


@pytest.fixture
def small() -> CPVT:
    """A plain backbone that sees positions."""
    return CPVT(dict(SMALL, patch_size=8)).eval()
