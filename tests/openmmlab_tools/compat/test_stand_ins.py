"""Stand-ins are found where nobody else has the module, and mmcv's operators return what compiled ones returned."""
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers import ROOT
from tests.openmmlab_tools.compat import cases

PTH = (ROOT / 'openmmlab_tools/compat/openmmlab_tools.pth').read_text()
# Small packages instead of the real ones, which take seconds to import.
MMCV = {'mmcv/__init__.py': ''}
TORCH = {'torch/__init__.py': '__version__ = "9.9.0"\nzeros = lambda *sizes: None'}
WORKING = {'torchvision/__init__.py': '__version__ = "0.99"\nclass ops:\n    nms = lambda *arguments: None'}
ALL = {**MMCV, **TORCH, **WORKING, **{f'openmmlab_tools/compat/operators/{name}.py': '__all__ = []'
                                      for name in ('boxes', 'deformable', 'losses', 'maps', 'regions')}}
INFO = {'some_name-1.2.dist-info/METADATA': 'Metadata-Version: 2.1\nName: some-name\nVersion: 1.2\n',
        'some_name-1.2.dist-info/top_level.txt': 'module\n'}

FOUND = """
    assert not {'torch', 'torchvision', 'mmcv'} & set(sys.modules)
    import importlib
    assert importlib.import_module('mmcv._ext') is importlib.import_module('mmcv._ext')
    import mmcv._ext
    print(hasattr(mmcv._ext, 'roi_align_rotated_forward'), hasattr(mmcv._ext, '__path__'))"""
# What mmengine calls.
PKG_RESOURCES = """
    import pkg_resources
    found = pkg_resources.get_distribution('some-name')
    print(found.version, found.location == sys.path[0], found.has_metadata('missing.txt'),
          found.has_metadata('top_level.txt') and found.get_metadata('top_level.txt').strip())
    try:
        pkg_resources.get_distribution('other')
    except pkg_resources.DistributionNotFound:
        from pkg_resources import parse_version"""
# Python's own is kept; without it, it answers as before Python 3.14.
FIND_LOADER = """
    import pkgutil, openmmlab_tools.compat
    sys.version_info, pkgutil.find_loader = (3, 14), 'own'
    openmmlab_tools.compat.install()
    own = pkgutil.find_loader
    del pkgutil.find_loader
    openmmlab_tools.compat.install()
    print(own, pkgutil.find_loader('mmcv') is not None, pkgutil.find_loader('nothing'))"""


@pytest.mark.parametrize('code, files, output, told', [
    # What there is is used.
    ('import mmcv._ext; print(mmcv._ext.own)', {**MMCV, **WORKING, 'mmcv/_ext.py': 'own = 1'}, '1', ''),
    ('import pkg_resources; print(pkg_resources.own)', {'pkg_resources.py': 'own = 1'}, '1', ''),
    # The stand-in is found whoever imports it.
    (FOUND, ALL, 'True False', ''),
    # What cannot be loaded or replaced is one sentence.
    ('import mmcv._ext', {**MMCV, **WORKING, 'mmcv/_ext.py': 'raise ImportError("undefined symbol: _ZN")'}, '',
     'ImportError: undefined symbol: _ZN'),
    ('import mmcv._ext', {**MMCV, **TORCH}, '', "ModuleNotFoundError: No module named 'mmcv._ext'"),
    ('import mmcv._ext', {**MMCV, **TORCH, 'torchvision/__init__.py':  # one for another torch
                          'class ops:\n def nms(*boxes):\n  raise RuntimeError("No C++ ops.\\nMore.")'}, '',
     'ImportError: mmcv has no compiled operators here, and torchvision, whose operators would stand in for them, does '
     'not work (No C++ ops.): install the torchvision that goes with torch 9.9.0, or compile mmcv.'),
    (PKG_RESOURCES, INFO, '1.2 True False module', 'ImportError: parse_version is not in the stand-in'),
    (FIND_LOADER, MMCV, 'own True None', '')])
def test_stand_ins_are_found_where_nobody_else_has_the_module(code: str, files: dict[str, str], output: str, told: str,
                                                              tmp_path: Path) -> None:
    """In a new interpreter that sees the standard library, these files, and our package, as installed."""
    package = ROOT / 'openmmlab_tools'
    ours = {str(path.relative_to(ROOT)): path.read_text()
            for path in (package / '__init__.py', *(package / 'compat').rglob('*.py'))}
    for name, text in {**ours, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    start = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {PTH}"  # Python runs the line in the same way
    done = subprocess.run([sys.executable, '-SE', '-c', f'{start}\n{textwrap.dedent(code)}'], cwd=tmp_path, timeout=60,
                          capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert done.stdout.strip() == output and bool(done.returncode) == ('Error' in told), done.stderr
    assert ''.join(lines[-1:]).startswith(told) and (done.returncode or len(lines) == bool(told))


COMPILED = np.load(Path(__file__).with_name('compiled.npz'))
# Sums of at most some hundred products, in another order: a few roundings of the largest value. Compiled operators also
# sum in float16.
TOLERANCE = {torch.float16: 2 ** -6, torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.mark.parametrize('name', cases.CASES)
def test_results_are_those_of_compiled_operators(name: str) -> None:
    stored = {key.rpartition('/')[2]: torch.from_numpy(COMPILED[key]) for key in COMPILED
              if key.rpartition('/')[0] == name}
    results = cases.run(name)
    assert results.keys() == stored.keys()
    for key, wanted in stored.items():
        if wanted.dtype in TOLERANCE and wanted.numel():
            atol = TOLERANCE[wanted.dtype] * wanted.abs().max().item()
            torch.testing.assert_close(results[key], wanted, rtol=0, atol=atol)
        else:
            assert results[key].dtype == wanted.dtype and results[key].tolist() == wanted.tolist()


def test_every_stored_result_belongs_to_a_case() -> None:
    assert {key.rpartition('/')[0] for key in COMPILED} == set(cases.CASES)
