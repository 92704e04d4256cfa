"""Packages import in one direction: lab -> cpvt_mm -> openmmlab_runs, and openmmlab_compat stands alone."""
import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# What a package must not import.
FORBIDDEN = {'openmmlab_runs': {'cpvt_mm', 'lab', 'tests'}, 'cpvt_mm': {'lab', 'tests'},
             'openmmlab_compat': {'cpvt_mm', 'openmmlab_runs', 'lab', 'tests'}, 'lab': {'tools'}}


def imported(path: Path) -> set[str]:
    """The top-level packages that a file imports, also in functions."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.split('.')[0] for name in names}


@pytest.mark.parametrize('package', FORBIDDEN)
def test_a_package_imports_no_higher_one(package: str) -> None:
    files = [path for path in (ROOT / package).rglob('*.py') if '.mim' not in path.parts]
    assert files
    assert {str(path): wrong for path in files if (wrong := imported(path) & FORBIDDEN[package])} == {}


def test_runs_do_without_the_backbones() -> None:
    code = "import sys, openmmlab_runs.engine; sys.exit('cpvt_mm' in sys.modules)"
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
