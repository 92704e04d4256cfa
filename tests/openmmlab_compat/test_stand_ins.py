"""Stand-ins are found by Python where nobody else has the module, and only there."""
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import ROOT

PTH = (ROOT / 'openmmlab_compat.pth').read_text()
# Small packages instead of the real ones, which take seconds to import.
MMCV = {'mmcv/__init__.py': ''}
TORCH = {'torch/__init__.py': '__version__ = "9.9.0"\nzeros = lambda *sizes: None'}
WORKING = {'torchvision/__init__.py': '__version__ = "0.99"\nclass ops:\n    nms = lambda *arguments: None'}
OPERATORS = {f'openmmlab_compat/operators/{name}.py': '__all__ = []'
             for name in ('boxes', 'deformable', 'losses', 'maps', 'regions')}


@pytest.fixture
def run(tmp_path: Path):
    """Runs code in a new interpreter that sees the standard library, these files, and our package, as installed."""

    def run(code: str, files: dict[str, str]) -> subprocess.CompletedProcess:
        ours = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / 'openmmlab_compat').rglob('*.py')}
        for name, text in {**ours, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        start = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {PTH}"  # Python runs the line in the same way
        return subprocess.run([sys.executable, '-SE', '-c', start + textwrap.dedent(code)], cwd=tmp_path, timeout=60,
                              capture_output=True, text=True)

    return run


def test_compiled_operators_are_used_where_they_are(run) -> None:
    done = run('import mmcv._ext; print(mmcv._ext.compiled)', {**MMCV, **WORKING, 'mmcv/_ext.py': 'compiled = 1'})
    assert (done.stdout, done.stderr) == ('1\n', '')


def test_compiled_operators_that_do_not_load_are_not_replaced(run) -> None:
    done = run('import mmcv._ext', {**MMCV, **WORKING, 'mmcv/_ext.py': 'raise ImportError("undefined symbol: _ZN2at")'})
    assert done.stderr.splitlines()[-1] == 'ImportError: undefined symbol: _ZN2at'


def test_the_stand_in_is_found_whoever_imports_it_and_says_so_once(run) -> None:
    done = run("""
        assert not {'torch', 'torchvision', 'mmcv'} & set(sys.modules)
        import importlib
        assert importlib.import_module('mmcv._ext') is importlib.import_module('mmcv._ext')
        import mmcv._ext
        print(hasattr(mmcv._ext, 'roi_align_rotated_forward'), hasattr(mmcv._ext, '__path__'))
        """, {**MMCV, **TORCH, **WORKING, **OPERATORS})
    assert done.stdout == 'True False\n', done.stderr
    assert done.stderr == ('mmcv has no compiled operators: those of torchvision 0.99 and plain torch stand in.\n')


@pytest.mark.parametrize('environment', ['RANK=1', 'a child process'])
def test_other_processes_of_a_run_say_nothing(run, environment: str) -> None:
    code = "import os; os.environ['RANK'] = '1'; import mmcv._ext" if environment == 'RANK=1' else """
        import multiprocessing
        child = multiprocessing.get_context('fork').Process(target=__import__, args=('mmcv._ext',))
        child.start()
        child.join()
        assert child.exitcode == 0
        """
    done = run('\n' + code, {**MMCV, **TORCH, **WORKING, **OPERATORS})
    assert (done.returncode, done.stderr) == (0, '')


def test_without_torchvision_the_module_is_missing_as_before(run) -> None:
    done = run('import mmcv._ext', {**MMCV, **TORCH})
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'mmcv._ext'"


@pytest.mark.parametrize('fault, reason', [
    ("raise RuntimeError('operator torchvision::nms does not exist')", 'operator torchvision::nms does not exist'),
    ("class ops:\n    def nms(*arguments):\n        raise RuntimeError(\"Couldn't load custom C++ ops.\\nMore.\")",
     "Couldn't load custom C++ ops."),
])
def test_a_torchvision_for_another_torch_is_one_sentence(run, fault: str, reason: str) -> None:
    done = run('import mmcv._ext', {**MMCV, **TORCH, 'torchvision/__init__.py': fault})
    assert done.stderr.splitlines()[-1] == (
        'ImportError: mmcv has no compiled operators here, and torchvision, whose operators would stand in for them, '
        f'does not work ({reason}): install the torchvision that goes with torch 9.9.0, or compile mmcv.')


DISTRIBUTION = {
    'some_name-1.2.dist-info/METADATA': 'Metadata-Version: 2.1\nName: some-name\nVersion: 1.2\n',
    'some_name-1.2.dist-info/top_level.txt': 'module\n',
}


def test_pkg_resources_stands_in_for_what_mmengine_calls(run) -> None:
    done = run("""
        import importlib
        import pkg_resources
        importlib.reload(pkg_resources)
        found = pkg_resources.get_distribution('some-name')
        print(found.version, found.location == sys.path[0], found.has_metadata('missing.txt'))
        print(found.has_metadata('top_level.txt') and found.get_metadata('top_level.txt'))
        try:
            pkg_resources.get_distribution('other')
        except pkg_resources.DistributionNotFound:
            print('not found')
        from pkg_resources import parse_version
        """, DISTRIBUTION)
    assert done.stdout.split() == ['1.2', 'True', 'False', 'module', 'not', 'found']
    # What other packages catch if setuptools has no pkg_resources.
    assert done.stderr.splitlines()[-1].startswith('ImportError: parse_version is not in the stand-in')


def test_the_real_pkg_resources_is_used_where_it_is(run) -> None:
    assert run('import pkg_resources; print(pkg_resources.real)', {'pkg_resources.py': 'real = 1'}).stdout == '1\n'


def test_find_loader_answers_as_before_python_3_14(run) -> None:
    done = run("""
        import pkgutil, openmmlab_compat
        sys.version_info = (3, 14)
        vars(pkgutil).pop('find_loader', None)
        openmmlab_compat.install()
        print(pkgutil.find_loader('mmcv') is not None, pkgutil.find_loader('nothing'))
        """, MMCV)
    assert done.stdout == 'True None\n', done.stderr


def test_find_loader_of_python_is_kept(run) -> None:
    done = run("""
        import pkgutil, openmmlab_compat
        sys.version_info, pkgutil.find_loader = (3, 14), 'own'
        openmmlab_compat.install()
        print(pkgutil.find_loader)
        """, {})
    assert done.stdout == 'own\n', done.stderr
