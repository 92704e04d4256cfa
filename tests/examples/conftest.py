import runpy
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import ROOT

EXAMPLES = ROOT / 'examples'


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs an example as a script, in this process; returns its variables."""

    def run(name: str, *args: object) -> dict[str, Any]:
        monkeypatch.setattr(sys, 'argv', [name, *map(str, args)])
        return runpy.run_path(str(EXAMPLES / name), run_name='__main__')

    return run
