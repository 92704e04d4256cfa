"""Jobs for clusters: Slurm's with its signals, Kubernetes' by their contents."""
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, UPERNET, toy_overrides
from tests.processes import wait_until

# One process on this machine in place of those of Slurm.
SRUN = """#!/usr/bin/env bash
echo $$ > srun.pid
shift
exec "${@/#slurm/none}"
"""
SCONTROL = """#!/bin/sh
echo "$@" >> requeued.txt
"""


@pytest.mark.slow
def test_a_job_of_slurm_saves_goes_back_into_the_queue_and_goes_on(toy_shapes: Path, tmp_path: Path) -> None:
    for tool, text in (('srun', SRUN), ('scontrol', SCONTROL)):
        (tmp_path / tool).write_text(text)
        (tmp_path / tool).chmod(0o755)
    (tmp_path / 'tools').symlink_to(ROOT / 'tools')
    options = toy_overrides(toy_shapes, **{'train_cfg.max_iters': 20, 'train_cfg.val_interval': 100,
                                           'default_hooks.checkpoint.interval': 100, 'log_level': 'INFO'})

    def submit() -> subprocess.Popen:
        return subprocess.Popen(
            [ROOT / 'examples/slurm.sbatch', UPERNET, '--work-dir', 'work', '--cfg-options',
             *(f'{key}={value}' for key, value in options.items())], cwd=tmp_path, stdout=subprocess.DEVNULL,
            env={**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}', 'PYTHON': sys.executable,
                 'OMP_NUM_THREADS': '1', 'SLURM_JOB_ID': '7'})

    job = submit()
    try:
        wait_until(lambda: job.poll() is not None or any(
            'Iter(train)' in log.read_text() for log in tmp_path.glob('work/*/*.log')))
        os.kill(int((tmp_path / 'srun.pid').read_text()), signal.SIGUSR1)
        assert job.wait(120) == 0
    finally:
        job.kill()
    assert (tmp_path / 'requeued.txt').read_text() == 'requeue 7\n'
    saved = Path((tmp_path / 'work/last_checkpoint').read_text())
    assert 0 < int(saved.stem.removeprefix('iter_')) < 20
    assert submit().wait(300) == 0
    assert (tmp_path / 'requeued.txt').read_text() == 'requeue 7\n'  # no more: it is done
    assert (tmp_path / 'work/iter_20.pth').exists()


@pytest.mark.parametrize('name', ['pytorchjob.yaml', 'trainjob.yaml'])
def test_jobs_of_kubernetes_run_what_is_there(name: str) -> None:
    text = (ROOT / 'examples' / name).read_text()
    job = yaml.safe_load(text)
    assert text.startswith('# Not run: ') and job['metadata']['name'] == 'cpvt-mm'
    spec = job['spec'].get('trainer') or (
        job['spec']['pytorchReplicaSpecs']['Worker']['template']['spec']['containers'][0])
    tool, config = (ROOT / word.removeprefix('/workspace/') for word in spec['command'] if word.endswith('.py'))
    assert tool.exists() and config.exists() and spec['command'][-1] == '--resume'
