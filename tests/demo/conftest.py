from pathlib import Path

import pytest


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A file that is no image."""
    path = tmp_path / 'broken.png'
    path.write_text('no image')
    return path
