"""Jobs for clusters: Slurm's with its signals, Ray's with a worker that is killed, Kubernetes' by their contents."""
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from tests.backbones import UPERNET
from tests.helpers import ROOT, toy_overrides
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
DYING = """
import os
import signal
from pathlib import Path

from mmengine.hooks import Hook
from mmengine.registry import HOOKS

@HOOKS.register_module()
class DieOnce(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        note = Path(runner.work_dir, 'died')
        if runner.rank == 1 and runner.iter == 3 and not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def overrides(toy_shapes: Path, **more: object) -> list[str]:
    return [f'{key}={value}' for key, value in toy_overrides(toy_shapes, **more).items()]


@pytest.mark.slow
def test_a_job_of_slurm_saves_goes_back_into_the_queue_and_goes_on(toy_shapes: Path, tmp_path: Path) -> None:
    for tool, text in (('srun', SRUN), ('scontrol', SCONTROL)):
        (tmp_path / tool).write_text(text)
        (tmp_path / tool).chmod(0o755)
    (tmp_path / 'tools').symlink_to(ROOT / 'tools')
    command = [ROOT / 'examples/slurm.sbatch', UPERNET, '--work-dir', 'work', '--cfg-options', *overrides(
        toy_shapes, **{'train_cfg.max_iters': 20, 'train_cfg.val_interval': 100,
                       'default_hooks.checkpoint.interval': 100, 'log_level': 'INFO'})]
    environ = {**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}', 'PYTHON': sys.executable,
               'OMP_NUM_THREADS': '1', 'SLURM_JOB_ID': '7'}
    job = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: job.poll() is not None or any(
            'Iter(train)' in log.read_text() for log in tmp_path.glob('work/*/*.log')))
        os.kill(int((tmp_path / 'srun.pid').read_text()), signal.SIGUSR1)
        assert job.wait(120) == 0
    finally:
        job.kill()
    saved = Path((tmp_path / 'work/last_checkpoint').read_text())
    assert 0 < int(saved.stem.removeprefix('iter_')) < 20
    subprocess.run(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, check=True, timeout=300)
    assert (tmp_path / 'requeued.txt').read_text() == 'requeue 7\n'  # once: now it is done
    assert (tmp_path / 'work/iter_20.pth').exists()


@pytest.mark.slow
def test_a_worker_of_ray_that_is_killed_changes_nothing_of_the_end(toy_shapes: Path, tmp_path: Path) -> None:
    """Ray starts both workers again, from the last checkpoint. The end is that of two processes without Ray."""
    pytest.importorskip('ray', reason='make test-clusters installs it')
    (tmp_path / 'dying.py').write_text(DYING)
    (tmp_path / 'config.py').write_text(
        f"_base_ = {str(UPERNET)!r}\ncustom_imports = dict(imports='dying')\ncustom_hooks = [dict(type='DieOnce')]")
    options = overrides(toy_shapes, **{'train_cfg.max_iters': 5, 'train_cfg.val_interval': 5, 'randomness.seed': 0,
                                       'default_hooks.checkpoint.interval': 2})
    environ = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(tmp_path), *sys.path]), 'PYTHON': sys.executable}
    for command in ([sys.executable, ROOT / 'examples/ray_train.py', 'config.py', '--workers', '2', '--work-dir',
                     'killed'],
                    [ROOT / 'tools/dist_train.sh', UPERNET, '2', '--work-dir', 'whole']):
        subprocess.run([*command, '--cfg-options', *options], cwd=tmp_path, env=environ, check=True)
    killed, whole = (torch.load(tmp_path / name / 'iter_5.pth')['state_dict'] for name in ('killed', 'whole'))
    assert (tmp_path / 'killed/died').exists() and killed.keys() == whole.keys()
    assert all(torch.equal(value, whole[key]) for key, value in killed.items())
    # After iterations 2, 4 and 5; after 2 twice if the worker dies before Ray has taken note of the first.
    assert len(list(tmp_path.glob('killed/ray/checkpoint_*/last.pth'))) in (3, 4)


@pytest.mark.parametrize('name', ['pytorchjob.yaml', 'trainjob.yaml'])
def test_jobs_of_kubernetes_run_what_is_there(name: str) -> None:
    text = (ROOT / 'examples' / name).read_text()
    job = yaml.safe_load(text)
    assert text.startswith('# Not run: ') and job['metadata']['name'] == 'cpvt-mm'
    spec = job['spec'].get('trainer') or (
        job['spec']['pytorchReplicaSpecs']['Worker']['template']['spec']['containers'][0])
    tool, config = (ROOT / word.removeprefix('/workspace/') for word in spec['command'] if word.endswith('.py'))
    assert tool.exists() and config.exists() and spec['command'][-1] == '--resume'
