"""openmmlab_tools, its tests too, does without the other packages of this repository."""
import subprocess
import sys

import pytest

from tests.helpers import ROOT


@pytest.mark.slow
def test_tests_of_openmmlab_tools_are_found_without_the_other_packages() -> None:
    """`pytest -p tests.openmmlab_tools.alone tests/openmmlab_tools` also runs them, in minutes."""
    command = [sys.executable, '-m', 'pytest', '-q', '--collect-only', '-p', 'tests.openmmlab_tools.alone']
    done = subprocess.run([*command, 'tests/openmmlab_tools'], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    refused = subprocess.run([*command, 'tests/zoo/test_load.py'], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode != 0 and "No module named 'cpvt_mm'" in refused.stdout
