"""Choices and refusals of setup_env.sh, without an installation; the stand-in where torchvision cannot be installed."""
import fcntl
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import ROOT, refusal

STAND_IN = ROOT / 'lab/torchvision_stand_in.py'
setup = SimpleNamespace(**runpy.run_path(str(ROOT / 'lab/choose_setup.py')))
# What pip offers.
PYPI = dict(torches=('2.15.0', '2.14.1', '2.13.0', '2.9.1', '2.9.0', '2.6.0'),
            torchvisions=('0.30.0', '0.29.1', '0.28.0', '0.24.1', '0.24.0', '0.21.0'))
AT_HAND = dict(PYPI, torches=(*PYPI['torches'], '2.13.0+cpu'))
CPU_INDEX = {name: tuple(f'{version}+cpu' for version in versions) for name, versions in PYPI.items()}
PAIR = ('torch>=2.6', 'torchvision>=0.21')
CPU_BUILD = ('torch==2.13.0+cpu',)


@pytest.mark.parametrize('facts, torch, operators', [
    (PYPI, PAIR, 'torchvision'), ({}, PAIR, 'torchvision'),  # {}: without a network
    (dict(PYPI, operators='compiled'), PAIR, 'compiled'), (dict(PYPI, torchvision_fails=True), PAIR[:1], 'compiled'),
    (dict(PYPI, torch='2.9'), ('torch==2.9.1', 'torchvision'), 'torchvision'),
    (dict(CPU_INDEX, torch='2.13'), ('torch==2.13.0+cpu', 'torchvision'), 'torchvision'),
    (AT_HAND, CPU_BUILD, 'compiled'), (dict(AT_HAND, operators='torchvision'), PAIR, 'torchvision'),
    (dict(AT_HAND, compiler=False), PAIR, 'torchvision'), (dict(AT_HAND, gpu=True), PAIR, 'torchvision')])
def test_the_torch_and_the_operators(facts: dict[str, object], torch: tuple[str, ...], operators: str) -> None:
    choice = setup.choose(setup.Facts(**facts))
    assert (choice.torch, choice.operators) == (torch, operators)
    other, = {'torchvision', 'compiled'} - {operators}
    assert facts.get('operators') or choice.why.endswith(f'OPERATORS={other} chooses otherwise')


@pytest.mark.parametrize('facts, sentence', [
    (dict(python=(3, 15)), 'PYTHON is Python 3.15, but must be 3.10 to 3.14'),
    (dict(stack='mmlab'), "STACK is 'mmlab', but must be openmmlab or onedl"),
    (dict(torch='2.5.1'), 'TORCH is 2.5.1, but cpvt_mm needs torch 2.6 or newer'),
    (dict(PYPI, torch='2.11'), 'TORCH is 2.11, but pip has no such torch'),
    (dict(AT_HAND, torch='2.13', operators='torchvision'),
     'OPERATORS is torchvision, but none works with torch 2.13.0+cpu'),
    (dict(PYPI, operators='compiled', compiler=False),
     'since OPERATORS is compiled, but there is no C++ compiler: install g++ or clang'),
    (dict(AT_HAND, torch='2.13', force_cuda=True), 'FORCE_CUDA is 1, but torch 2.13.0+cpu is a build for CPUs'),
    (dict(PYPI, free_gb=5), 'The disk has 5.0 GB for the environment, but the newest torch and the rest need 8'),
    (dict(env_python=(3, 12)), 'The environment has Python 3.12, but PYTHON is Python 3.11'),
    (dict(installed=('onedl-mmengine',)), 'The environment has the other stack (onedl-mmengine)')])
def test_what_cannot_be_is_one_sentence(facts: dict[str, object], sentence: str) -> None:
    message = refusal(setup.choose, setup.Facts(**facts), error=setup.Refusal)
    assert sentence in message and message.endswith('.')


@pytest.mark.parametrize('facts, mmcv, remove', [
    (dict(operators='compiled'), 'mmcv==2.1.0', ()),
    (dict(operators='compiled', installed=('mmcv-lite',)), 'mmcv==2.1.0', ('mmcv-lite',)),
    (dict(operators='torchvision', installed=('mmcv', 'mmcv-lite')), 'mmcv-lite==2.1.0', ('mmcv', 'mmcv-lite')),
    (dict(stack='onedl', mmcv='onedl-mmcv==2.3.6', operators='compiled'), 'onedl-mmcv==2.3.6', ())])
def test_two_mmcvs_are_not_mixed(facts: dict[str, object], mmcv: str, remove: tuple[str, ...]) -> None:
    choice = setup.choose(setup.Facts(**facts))
    assert (choice.mmcv, choice.remove) == (mmcv, remove)


def test_nvcc_comes_from_pypi_unless_one_fits() -> None:
    assert setup.choose_nvcc('13.0', '') == setup.choose_nvcc('13.0', '12.8') == '13.0'
    assert setup.choose_nvcc('13.0', '13.1') == setup.choose_nvcc('12.8', '12.6') == ''
    with pytest.raises(setup.Refusal, match=r'torch is built for CUDA 12\.8, .*: install nvcc 12\.8, or set OPERATORS'):
        setup.choose_nvcc('12.8', '')


def run_script(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    unset = dict.fromkeys(['OPERATORS', 'TORCH', 'FORCE_CUDA'], '')
    return subprocess.run([ROOT / 'tools/misc/setup_env.sh', *arguments, folder], capture_output=True, text=True,
                          timeout=60, env={**os.environ, **unset, 'PYTHON': sys.executable, **variables})


@pytest.mark.parametrize('variables, sentence', [
    (dict(TORCH='2.5'), 'TORCH is 2.5, but cpvt_mm needs torch 2.6 or newer.'),
    (dict(PYTHON='python2.1'), "PYTHON is 'python2.1', which is not there: set PYTHON to Python 3.10 to 3.14.")])
def test_the_script_refuses_before_it_makes_a_folder(variables: dict[str, str], sentence: str, tmp_path: Path) -> None:
    done = run_script(tmp_path / 'env', 'onedl', **variables)
    assert (done.returncode, done.stdout, done.stderr) == (2, '', f'{sentence}\n')
    assert not (tmp_path / 'env').exists()
    with (tmp_path / '.cpvt_mm_lock').open('w') as lock:  # a second run does not disturb the first
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run_script(tmp_path, 'openmmlab')
    assert (done.returncode, done.stderr) == (2, f'Another run sets up {tmp_path}: wait until it ends.\n')
    assert [path.name for path in tmp_path.iterdir()] == ['.cpvt_mm_lock']


def test_an_installed_torchvision_is_used_and_nothing_in_the_stand_in(
        run_python: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'torchvision.py').touch()
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.path), os.environ.get('PYTHONPATH')
    runpy.run_path(str(STAND_IN))['stand_in']()
    assert (sys.path, os.environ.get('PYTHONPATH')) == before
    done = run_python(f"import sys; sys.path.insert(0, {str(STAND_IN.parent / 'stand_ins')!r})\n"
                      'from torchvision.ops.misc import FrozenBatchNorm2d\nFrozenBatchNorm2d(3)')
    assert done.stderr.splitlines()[-1].startswith('ImportError: FrozenBatchNorm2d needs torchvision')
