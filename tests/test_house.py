"""Rules that keep the code readable, and that a contribution of any size can meet.

Packages import in one direction: lab -> cpvt_mm -> openmmlab_tools, and nothing imports projects.
"""
import subprocess
import sys

import pytest

from lab.commands import house
from tests.helpers import ROOT

# From the top: what a package may import are those behind it.
ORDER = ('projects', 'tools', 'lab', 'tests', 'cpvt_mm', 'openmmlab_tools')


def test_files_and_functions_can_be_surveyed() -> None:
    longest = house.longest()
    assert longest['file'][0] <= 400, longest['file']
    assert longest['function'][0] <= 60, longest['function']


def test_a_forward_pass_takes_few_python_calls() -> None:
    """Small models are slowed down by Python, above all on a GPU. cProfile's primitive calls are counted, also in C."""
    assert house.forward_pass()['calls of a forward pass'] <= 2000


@pytest.mark.parametrize('package', house.PACKAGES)
def test_a_package_imports_no_higher_one(package: str) -> None:
    higher = set(ORDER[:ORDER.index(package)])
    assert {str(path): wrong for path in house.python_files(package)
            if (wrong := {name.split('.')[0] for name in house.imports(path)} & higher)} == {}


def test_tests_of_openmmlab_tools_reach_no_other_package() -> None:
    """Also through helpers. Fixtures of tests/conftest.py may import cpvt_mm, so helpers are in other files."""
    files = {house.module_of(path): path for path in house.python_files('tests')}
    reached = [name for name in files if name.startswith('tests.openmmlab_tools')]
    others = {}
    for name in reached:  # which grows
        names = house.imports(files[name])
        reached += [other for other in names if other in files and other not in reached]
        if wrong := {other for other in names if other.split('.')[0] in ('cpvt_mm', 'lab', 'projects')}:
            others[name] = wrong
    assert others == {} and 'tests.helpers' in reached and 'tests.conftest' not in reached


def test_only_pytest_and_conftests_import_the_shared_conftest() -> None:
    """Tests import shared functions from tests/helpers.py, or from tests/backbones.py if they need cpvt_mm."""
    assert [str(path) for path in house.python_files('tests', 'lab', 'projects')
            if 'tests.conftest' in house.imports(path) and path.name != 'conftest.py'] == []


def test_no_file_or_folder_is_in_a_circle_and_no_name_leads_nowhere() -> None:
    assert house.circles(house.import_graph()) == house.circles(house.graph_of_rooms()) == []
    assert house.circles({'a': {'b'}, 'b': {'c'}, 'c': {'a'}, 'd': {'a'}}) == [['a', 'b', 'c']]
    assert house.broken_imports() == []


def test_who_reads_the_backbone_opens_few_files() -> None:
    """Those that `models/pyramid_cpvt.py` imports, directly or through others, and itself."""
    opened = house.reached('cpvt_mm.models.pyramid_cpvt')
    assert {'cpvt_mm.models.pyramid_cpvt', 'cpvt_mm.models.layers', 'cpvt_mm.tokens.grid'} <= {*opened}
    assert len(opened) <= 25 and sum(opened.values()) <= 3000, opened


def test_runs_do_without_the_backbones() -> None:
    code = "import sys, openmmlab_tools.engine, openmmlab_tools.own_data.checking; sys.exit('cpvt_mm' in sys.modules)"
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT).returncode == 0


def test_the_package_registers_models_and_encodings_only() -> None:
    code = """
import cpvt_mm, sys
from mmengine.fileio import backends
from mmengine.registry import HOOKS, LOOPS, METRICS, MODELS
assert 'PyramidCPVT' in MODELS and 'fsspec' not in str(backends.registry_utils.prefix_to_backends)
assert not [name for name in sys.modules if name.startswith(('mmcv', 'mmdet', 'mmseg', 'openmmlab_tools.engine'))]
"""
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
