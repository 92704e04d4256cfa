"""The shape of the repository: its size is limited, and packages import in one direction.

lab -> cpvt_mm -> openmmlab_data -> openmmlab_runs -> openmmlab_compat, and nothing imports projects.
"""
import subprocess
import sys
from typing import Any

import pytest

from lab.commands import house
from tests.conftest import ROOT

tomllib = pytest.importorskip('tomllib')  # Python 3.11

LIMITS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / 'pyproject.toml').read_text())['tool']['house']
# From the top: what a package may import are those behind it.
ORDER = ('projects', 'tools', 'lab', 'tests', 'cpvt_mm', 'openmmlab_data', 'openmmlab_runs', 'openmmlab_compat')


def test_no_folder_is_larger_than_it_may_be() -> None:
    found = house.sizes()
    assert set(found) == set(LIMITS['lines'])
    assert {name: found[name][0] for name, limit in LIMITS['lines'].items() if found[name][0] > limit} == {}
    assert {name: found[name][1] for name, limit in LIMITS['files'].items() if found[name][1] > limit} == {}


def test_nothing_is_longer_or_deeper_than_it_may_be() -> None:
    found = {**house.shape(), **house.forward_pass()}
    assert set(found) == set(LIMITS['limits'])
    assert {name: value for name, value in found.items() if value > LIMITS['limits'][name]} == {}


@pytest.mark.parametrize('package', house.PACKAGES)
def test_a_package_imports_no_higher_one(package: str) -> None:
    higher = set(ORDER[:ORDER.index(package)])
    assert {str(path): wrong for path in house.python_files(package)
            if (wrong := {name.split('.')[0] for name in house.imports(path)} & higher)} == {}


def test_no_folder_is_in_a_circle_and_no_name_leads_nowhere() -> None:
    assert house.circles(house.import_graph()) == []
    assert house.circles({'a': {'b'}, 'b': {'c'}, 'c': {'a'}, 'd': {'a'}}) == [['a', 'b', 'c']]
    assert house.broken_imports() == []


def test_runs_do_without_the_backbones() -> None:
    code = "import sys, openmmlab_runs.engine, openmmlab_data.checking; sys.exit('cpvt_mm' in sys.modules)"
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT).returncode == 0


def test_the_package_registers_models_and_encodings_only() -> None:
    code = """
import cpvt_mm, sys
from mmengine.fileio import backends
from mmengine.registry import HOOKS, LOOPS, METRICS, MODELS
assert 'PyramidCPVT' in MODELS and 'fsspec' not in str(backends.registry_utils.prefix_to_backends)
assert not [name for name in sys.modules if name.startswith(('mmcv', 'mmdet', 'mmseg', 'openmmlab_runs.engine'))]
"""
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
