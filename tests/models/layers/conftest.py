"""All layers are tested in float64."""
import pytest


@pytest.fixture(autouse=True)
def _float64(float64: None) -> None:
    """Layers are compared with formulas."""
