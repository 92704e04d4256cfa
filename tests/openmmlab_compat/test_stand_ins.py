"""Stand-ins are found where nobody else has the module, and mmcv's operators return what compiled ones returned."""
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import ROOT
from tests.openmmlab_compat import cases

PTH = (ROOT / 'openmmlab_compat.pth').read_text()
# Small packages instead of the real ones, which take seconds to import.
MMCV = {'mmcv/__init__.py': ''}
TORCH = {'torch/__init__.py': '__version__ = "9.9.0"\nzeros = lambda *sizes: None'}
WORKING = {'torchvision/__init__.py': '__version__ = "0.99"\nclass ops:\n    nms = lambda *arguments: None'}
OPERATORS = {f'openmmlab_compat/operators/{name}.py': '__all__ = []'
             for name in ('boxes', 'deformable', 'losses', 'maps', 'regions')}


def run(folder: Path, code: str, files: dict[str, str]) -> subprocess.CompletedProcess:
    """Runs code in a new interpreter that sees the standard library, these files, and our package, as installed."""
    ours = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / 'openmmlab_compat').rglob('*.py')}
    for name, text in {**ours, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    start = f"import sys; sys.path.insert(0, {str(folder)!r}); {PTH}"  # Python runs the line in the same way
    return subprocess.run([sys.executable, '-SE', '-c', start + textwrap.dedent(code)], cwd=folder, timeout=60,
                          capture_output=True, text=True)


@pytest.mark.parametrize('module, files', [('mmcv._ext', {**MMCV, **WORKING, 'mmcv/_ext.py': 'own = 1'}),
                                           ('pkg_resources', {'pkg_resources.py': 'own = 1'})])
def test_what_there_is_is_used(tmp_path: Path, module: str, files: dict[str, str]) -> None:
    done = run(tmp_path, f'import {module}; print({module}.own)', files)
    assert (done.stdout, done.stderr) == ('1\n', '')


def test_the_stand_in_is_found_whoever_imports_it_and_says_so_once(tmp_path: Path) -> None:
    done = run(tmp_path, """
        assert not {'torch', 'torchvision', 'mmcv'} & set(sys.modules)
        import importlib
        assert importlib.import_module('mmcv._ext') is importlib.import_module('mmcv._ext')
        import mmcv._ext
        print(hasattr(mmcv._ext, 'roi_align_rotated_forward'), hasattr(mmcv._ext, '__path__'))
        """, {**MMCV, **TORCH, **WORKING, **OPERATORS})
    assert done.stdout == 'True False\n', done.stderr
    assert done.stderr == 'mmcv has no compiled operators: those of torchvision 0.99 and plain torch stand in.\n'


def test_other_processes_of_a_run_say_nothing(tmp_path: Path) -> None:
    for code in ("import os; os.environ['RANK'] = '1'; import mmcv._ext", """
            import multiprocessing
            child = multiprocessing.get_context('fork').Process(target=__import__, args=('mmcv._ext',))
            child.start()
            child.join()
            assert child.exitcode == 0"""):
        done = run(tmp_path, '\n' + code, {**MMCV, **TORCH, **WORKING, **OPERATORS})
        assert (done.returncode, done.stderr) == (0, '')


@pytest.mark.parametrize('files, error', [
    ({**WORKING, 'mmcv/_ext.py': 'raise ImportError("undefined symbol: _ZN")'}, 'ImportError: undefined symbol: _ZN'),
    (TORCH, "ModuleNotFoundError: No module named 'mmcv._ext'"),
    # A torchvision for another torch.
    ({**TORCH, 'torchvision/__init__.py': 'class ops:\n def nms(*boxes):\n  raise RuntimeError("No C++ ops.\\nMore.")'},
     'ImportError: mmcv has no compiled operators here, and torchvision, whose operators would stand in for them, does '
     'not work (No C++ ops.): install the torchvision that goes with torch 9.9.0, or compile mmcv.')])
def test_what_cannot_be_loaded_or_replaced_is_one_sentence(tmp_path: Path, files: dict[str, str], error: str) -> None:
    assert run(tmp_path, 'import mmcv._ext', {**MMCV, **files}).stderr.splitlines()[-1] == error


def test_pkg_resources_stands_in_for_what_mmengine_calls(tmp_path: Path) -> None:
    done = run(tmp_path, """
        import pkg_resources
        found = pkg_resources.get_distribution('some-name')
        print(found.version, found.location == sys.path[0], found.has_metadata('missing.txt'))
        print(found.has_metadata('top_level.txt') and found.get_metadata('top_level.txt'))
        try:
            pkg_resources.get_distribution('other')
        except pkg_resources.DistributionNotFound:
            print('not found')
        from pkg_resources import parse_version
        """, {'some_name-1.2.dist-info/METADATA': 'Metadata-Version: 2.1\nName: some-name\nVersion: 1.2\n',
              'some_name-1.2.dist-info/top_level.txt': 'module\n'})
    assert done.stdout.split() == ['1.2', 'True', 'False', 'module', 'not', 'found']
    # What other packages catch if setuptools has no pkg_resources.
    assert done.stderr.splitlines()[-1].startswith('ImportError: parse_version is not in the stand-in')


def test_find_loader_of_python_is_kept_and_without_it_answers_as_before_python_3_14(tmp_path: Path) -> None:
    done = run(tmp_path, """
        import pkgutil, openmmlab_compat
        sys.version_info, pkgutil.find_loader = (3, 14), 'own'
        openmmlab_compat.install()
        print(pkgutil.find_loader)
        del pkgutil.find_loader
        openmmlab_compat.install()
        print(pkgutil.find_loader('mmcv') is not None, pkgutil.find_loader('nothing'))
        """, MMCV)
    assert done.stdout == 'own\nTrue None\n', done.stderr


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
