"""Refusals of setup_env.sh, and its calls of uv: with a Python that only writes down what it is told."""
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import ROOT

EXTRAS = 'mmpretrain,timm,s3,onnx,openvino,lora,hub,supervision,tiff'
# Takes the place of Python, and of pip and uv in the environment.
PYTHON = '''#!/bin/sh
echo "$@" >> {here}/calls
case "$*" in
  -V) echo Python {version} ;;
  *fcntl*) exec {python} "$@" ;;
  "-m venv "*) mkdir -p $3/bin $3/lib; cp $0 $3/bin/python; cp $0 $3/bin/uv ;;
  "-m pip config list") cat {here}/pip_config ;;
  "pip freeze"*) echo mmcv-lite==2.1.0 ;;
  "pip install"*) env > {here}/environ; if [ -e {here}/error ]; then cat {here}/error; exit 1; fi ;;
  *"import {missing}"*) echo "ImportError: no {missing}" >&2; exit 1 ;;
esac
'''
Run = Callable[..., subprocess.CompletedProcess]


def write_python(folder: Path, version: str = '3.11.7', missing: str = 'nothing') -> Path:
    path = folder / 'python'
    path.write_text(PYTHON.format(here=folder, python=sys.executable, version=version, missing=missing))
    path.chmod(0o755)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the script for the folder 'env', with no variables but these."""
    write_python(tmp_path)
    (tmp_path / 'pip_config').touch()
    ours = ('OPERATORS', 'TORCH', 'PYTHON')
    unset = {name for name in os.environ if name.startswith(('UV_', 'PIP_')) or name in ours}

    def call(stack: str = 'onedl', **variables: object) -> subprocess.CompletedProcess:
        (tmp_path / 'calls').write_text('')
        environ = {name: value for name, value in os.environ.items() if name not in unset}
        environ['PATH'] = f'{tmp_path}:{environ["PATH"]}'
        environ.update({name: str(value) for name, value in variables.items()})
        return subprocess.run([ROOT / 'tools/misc/setup_env.sh', stack, tmp_path / 'env'], capture_output=True,
                              text=True, timeout=60, env=environ)

    return call


def installed(folder: Path) -> list[str]:
    """Returns what uv was told to install, without its options for the environment."""
    lines = (folder / 'calls').read_text().splitlines()
    return [line.split(f'{folder}/env/bin/python ')[1] for line in lines if line.startswith('pip install ')]


@pytest.mark.parametrize('version, variables, sentence', [
    ('3.11.7', dict(stack='mmlab'), "STACK is 'mmlab', but must be openmmlab or onedl."),
    ('3.11.7', dict(OPERATORS='mmcv'), "OPERATORS is 'mmcv', but must be torchvision or compiled."),
    *(('3.11.7', dict(TORCH=torch), f"TORCH is '{torch}', but must be a version such as 2.14 or 2.14.1, from 2.6 on.")
      for torch in ('2.5.1', 'newest')),
    ('3.9.18', {}, "PYTHON is '{python}' (Python 3.9.18), but must be Python 3.10 to 3.14."),
    ('3.11.7', dict(PYTHON='python2.1'),
     "PYTHON is 'python2.1' (which is not there), but must be Python 3.10 to 3.14."),
    ('3.11.7', dict(OPERATORS='compiled', PATH='{here}/tools'),
     'OPERATORS is compiled, but there is no C++ compiler: install g++ or clang.')])
def test_what_cannot_be_is_refused_before_there_is_a_folder(
        version: str, variables: dict[str, str], sentence: str, run: Run, tmp_path: Path) -> None:
    python = write_python(tmp_path, version)
    (tmp_path / 'tools').mkdir()
    for name in ('bash', 'dirname', 'cat', 'cksum', 'sh'):
        (tmp_path / 'tools' / name).symlink_to(str(shutil.which(name)))
    done = run(**{'PYTHON': python, **{key: text.format(here=tmp_path) for key, text in variables.items()}})
    assert (done.returncode, done.stdout, done.stderr) == (2, '', sentence.format(python=python) + '\n')
    assert not (tmp_path / 'env').exists()


def test_a_folder_of_others_and_a_second_run_are_left_alone(run: Run, tmp_path: Path) -> None:
    env, python = tmp_path / 'env', tmp_path / 'python'
    (env / 'lib').mkdir(parents=True)
    assert run(PYTHON=python).stderr == f'{env} holds something that this script did not make: name a new folder.\n'
    assert [path.name for path in env.iterdir()] == ['lib']
    (env / '.cpvt_mm_asked').touch()
    folder = os.open(env, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_SH)
    assert run(PYTHON=python).stderr == f'Another run sets up {env}: wait until it ends.\n'
    os.close(folder)
    assert (env / 'lib').is_dir()


def test_it_installs_once_and_stays_of_the_kind_that_was_asked_for(run: Run, tmp_path: Path) -> None:
    assert run(PYTHON=tmp_path / 'python', TORCH='2.14').returncode == 0
    assert installed(tmp_path) == [f'torch==2.14.* torchvision -e .[onedl,{EXTRAS}] --group tests']
    old = tmp_path / 'env/lib/old'
    old.touch()
    done = run()
    assert (done.returncode, done.stdout, (tmp_path / 'calls').read_text()) == (0, '', '') and old.exists()
    (tmp_path / 'env/.cpvt_mm_ready').unlink()  # as after an interruption: made anew
    assert run().returncode == 0 and not old.exists()
    assert installed(tmp_path)[0].startswith('torch==2.14.* ')
    assert run('openmmlab', PYTHON=tmp_path / 'python').returncode == 0
    assert installed(tmp_path) == [f'torch torchvision -e .[openmmlab,{EXTRAS}] --group tests']


def test_uv_finds_packages_where_pip_does(run: Run, tmp_path: Path) -> None:
    (tmp_path / 'pip_config').write_text(
        ":env:.find-links='/a /b'\nglobal.find-links='/c'\nglobal.index-url='https://host/simple'\n"
        r"global.extra-index-url='https://other\nhttps://third'" '\n')
    run(PYTHON=tmp_path / 'python', UV_CONSTRAINT='mine.txt')
    environ = dict(line.split('=', 1) for line in (tmp_path / 'environ').read_text().splitlines() if '=' in line)
    assert {name: value for name, value in environ.items() if name.startswith('UV_')} == {
        'UV_COMPILE_BYTECODE': '1', 'UV_INDEX_STRATEGY': 'unsafe-best-match', 'UV_DEFAULT_INDEX': 'https://host/simple',
        'UV_INDEX': 'https://other https://third', 'UV_FIND_LINKS': '/a,/b', 'UV_CONSTRAINT': 'mine.txt'}


def test_a_step_that_fails_is_named_with_its_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / 'error').write_text('Resolving\nerror: Failed to fetch: `x`\n  cause: dns error\n\nhint: try later\n')
    done = run(PYTHON=tmp_path / 'python')
    assert done.stderr == (
        "The step 'torch, mmdet, mmsegmentation and cpvt_mm' failed (error: Failed to fetch: `x` cause: dns error): "
        f'mend that and run the same command again; {tmp_path}/env/setup.log has the rest.\n')
    assert done.returncode == 2 and not (tmp_path / 'env/.cpvt_mm_ready').exists()


def test_torchvision_or_compiled_operators(run: Run, tmp_path: Path) -> None:
    python = write_python(tmp_path, missing='torchvision')
    assert run(PYTHON=python).stderr == (
        'torchvision does not work beside this torch (ImportError: no torchvision): set TORCH to another version, or '
        'OPERATORS=compiled.\n')
    assert run(PYTHON=python, OPERATORS='compiled').returncode == 0
    *_, compiled = installed(tmp_path)
    assert compiled == '--no-cache --no-deps --no-build-isolation --no-binary mmcv mmcv==2.1.0'
    removed = [line.split()[-1] for line in (tmp_path / 'calls').read_text().splitlines() if 'uninstall' in line]
    assert removed == ['torchvision', 'mmcv-lite']  # mmcv and mmcv-lite have the same folder
