import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, UPERNET, toy_overrides


def launch(tool: str, *args: object, cwd: Path, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run([ROOT / 'tools' / tool, *map(str, args)], cwd=cwd, capture_output=True, text=True,
                          timeout=300, env=dict(os.environ, PYTHON=sys.executable, **env))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


@pytest.mark.slow
def test_two_processes_train_and_evaluate(toy_shapes: Path, tmp_path: Path) -> None:
    options = toy_overrides(toy_shapes, **{'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2,
                                           'default_hooks.checkpoint.interval': 2, 'log_level': 'INFO'})
    common = ['--work-dir', tmp_path, '--cfg-options', *(f'{key}={value}' for key, value in options.items())]
    environment = dict(OMP_NUM_THREADS='1', PORT=str(free_port()))
    trained = launch('dist_train.sh', UPERNET, 2, *common, cwd=tmp_path, **environment)
    assert trained.returncode == 0, trained.stderr
    resumed = launch('dist_train.sh', UPERNET, 2, *common, 'train_cfg.max_iters=3', '--resume', cwd=tmp_path,
                     **environment)
    assert resumed.returncode == 0, resumed.stderr
    assert (tmp_path / 'iter_3.pth').exists()
    assert 'Distributed training: True' in trained.stderr + trained.stdout
    assert 'GPU number: 2' in trained.stderr + trained.stdout
    evaluated = launch('dist_test.sh', UPERNET, tmp_path / 'iter_2.pth', 2, *common, cwd=tmp_path, **environment)
    assert evaluated.returncode == 0, evaluated.stderr
    lines = [[line.split('mIoU: ')[1].split()[0] for line in (run.stdout + run.stderr).splitlines() if 'mIoU: ' in line]
             for run in (trained, evaluated)]
    assert lines[0] == lines[1] and len(lines[0]) == 1


@pytest.mark.parametrize('tool, args, expected', [
    ('slurm_train.sh', ('part', 'job', 'c.py', '--amp'), 'train.py c.py --launcher slurm --amp'),
    ('slurm_test.sh', ('part', 'job', 'c.py', 'w.pth'), 'test.py c.py w.pth --launcher slurm'),
])
def test_slurm_is_asked_for_the_gpus(tool: str, args: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\necho "$@"\n')
    srun.chmod(0o755)
    done = launch(tool, *args, cwd=tmp_path, PATH=f'{tmp_path}:{os.environ["PATH"]}', GPUS='4', SRUN_ARGS='--quiet')
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('--partition=part --job-name=job --gres=gpu:4 --ntasks=4 --ntasks-per-node=4')
    assert '--quiet' in done.stdout
    assert done.stdout.strip().endswith(expected)


@pytest.mark.parametrize('tool', ['dist_train.sh', 'dist_test.sh', 'slurm_train.sh', 'slurm_test.sh'])
def test_missing_arguments_are_answered_with_the_usage(tool: str, tmp_path: Path) -> None:
    done = launch(tool, 'one', cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith('usage: ') and tool in done.stderr
