"""The command lines of training, also of the launchers: an error is a sentence and a status, never a traceback."""
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.backbones import UPERNET
from tests.helpers import ROOT, toy_overrides
from tests.processes import free_port, wait_until
from tests.tools.conftest import Run


@pytest.mark.parametrize('checkpoint, words', [('iter_2.pth', 'continue from iter_2.pth with --resume'),
                                               (None, 'start again')])
def test_ctrl_c_tells_how_to_go_on(run_tool: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                   checkpoint: str | None, words: str) -> None:
    def interrupt(*args: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr('openmmlab_tools.engine.train', interrupt)
    if checkpoint:
        (tmp_path / 'last_checkpoint').write_text(checkpoint)
    assert run_tool('train.py', UPERNET, '--work-dir', tmp_path) == f'Interrupted: {words}.'


@pytest.mark.parametrize('mistake, words', [
    ('--launcher pytorch', 'is for processes that pytorch starts, but RANK is not set'),
    ('--auto-scale-lr', '--auto-scale-lr needs auto_scale_lr.base_batch_size'),
    ('--resume no.pth', 'checkpoint no.pth does not exist: check the path.'),
    ('--resume published.pth', 'has no meta, optimizer, message_hub, so training cannot resume'),
    pytest.param('--amp', 'Mixed precision needs a GPU, but torch finds none: leave out --amp.',
                 marks=pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')),
    # Those of models are in test_entrances.py, and those of configs in openmmlab_tools/engine/test_refusals.py.
    ('--cfg-options optim_wrapper.optimizer.type=AdmaW', 'not a registered optimizer: did you mean AdamW')])
def test_a_mistake_is_a_sentence(mistake: str, words: str, run_tool: Run, toy_shapes: Path, tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(dict(state_dict=dict(weight=torch.ones(1))), 'published.pth')
    flags, _, options = mistake.partition('--cfg-options ')
    toy = toy_overrides(toy_shapes, **{'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1})
    told = run_tool('train.py', UPERNET, '--work-dir', 'work', *flags.split(), '--cfg-options',
                    *(f'{key}={value}' for key, value in toy.items()), *options.split())
    assert told.startswith('error: ') and '\n' not in told and words in told, told


@pytest.mark.parametrize('tool, package', [
    ('tools/train.py', 'cpvt_mm'), ('demo/image_demo.py', 'cpvt_mm'), ('tools/analysis_tools/benchmark.py', 'lab')])
def test_a_tool_outside_the_environment_says_so(tool: str, package: str) -> None:
    # -S hides the packages of the environment, -E a PYTHONPATH.
    run = subprocess.run([sys.executable, '-S', '-E', ROOT / tool], capture_output=True, text=True)
    assert run.stderr.startswith(f'error: {sys.executable} has no {package}: activate ') and run.returncode == 1


@pytest.mark.slow
def test_ctrl_c_ends_training_with_a_sentence(toy_shapes: Path, tmp_path: Path) -> None:
    options = toy_overrides(toy_shapes, **{'log_level': 'INFO', 'train_dataloader.num_workers': 2})
    process = subprocess.Popen(
        [sys.executable, ROOT / 'tools/train.py', UPERNET, '--work-dir', 'work', '--cfg-options',
         *(f'{key}={value}' for key, value in options.items())],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # Tests that run in the background of a shell ignore it, and so would their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        wait_until(lambda: process.poll() is not None or any(
            'Iter(train)' in log.read_text() for log in tmp_path.glob('work/*/*.log')))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1 and 'Traceback' not in err
    assert err.splitlines()[-1] == 'Interrupted: start again.'  # no checkpoint yet


def launch(tool: str, *args: object, cwd: Path, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run([ROOT / 'tools' / tool, *map(str, args)], cwd=cwd, capture_output=True, text=True,
                          timeout=300, env={**os.environ, 'PYTHON': sys.executable, **env})


@pytest.mark.slow
def test_two_processes_train_and_evaluate(toy_shapes: Path, tmp_path: Path) -> None:
    port = free_port()
    options = toy_overrides(toy_shapes, **{'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2,
                                           'default_hooks.checkpoint.interval': 2, 'log_level': 'INFO'})
    options = [f'{key}={value}' for key, value in options.items()]

    def run(tool: str, *args: object) -> str:
        done = launch(tool, UPERNET, *args, '--work-dir', tmp_path, '--cfg-options', *options, cwd=tmp_path,
                      OMP_NUM_THREADS='1', PORT=str(port))
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    trained = run('dist_train.sh', 2)
    assert 'batch       4 images on 2 x ' in trained
    options.append('train_cfg.max_iters=3')
    run('dist_train.sh', 2, '--resume')
    assert (tmp_path / 'iter_3.pth').exists()
    evaluated = run('dist_test.sh', tmp_path / 'iter_2.pth', 2)
    lines = [re.findall(r'^mIoU +(\S+)$', text, re.MULTILINE) for text in (trained, evaluated)]
    assert lines[0] == lines[1] and len(lines[0]) == 1
    for text in (trained, evaluated):  # one process prints
        assert text.count('Checking model and data.') == text.count('confusion.png shows') == 1


C10D = '--rdzv-backend=c10d --rdzv-id='
ELASTIC = dict(NNODES='1:4', MASTER_ADDR='a', RDZV_ID='7', MAX_RESTARTS='3')


@pytest.mark.parametrize('command, variables, expected', [
    *((f'slurm_{name}.sh part job c.py{more} --amp', dict(GPUS='4', SRUN_ARGS='--quiet'), [
        ' --partition=part --job-name=job --gres=gpu:4 --ntasks=4 --ntasks-per-node=4 ', ' --quiet ',
        f'{name}.py c.py{more} --launcher slurm --amp\n']) for name, more in (('train', ''), ('test', ' w.pth'))),
    *((f'dist_{name}.sh c.py{more} 4 --resume', variables, [f'SIGUSR1 -m torch.distributed.run {where}', '-node=4 '])
      for name, more in (('train', ''), ('test', ' w.pth')) for variables, where in (
          ({}, '--standalone --max-restarts=0'),  # torchrun takes a free port
          (dict(PORT='29600'), f'--nnodes=1 {C10D}cpvt_mm --rdzv-endpoint=127.0.0.1:29600'),
          (ELASTIC, f'--nnodes=1:4 {C10D}7 --rdzv-endpoint=a:29500 --max-restarts=3'))),
    ('dist_train.sh c.py 4', ELASTIC, [': add --resume, to lose nothing.\n'])])  # machines that come and go
def test_launchers_are_told_the_gpus_and_where_machines_meet(command: str, variables: dict[str, str],
                                                             expected: list[str], tmp_path: Path) -> None:
    stub = tmp_path / 'srun'  # it takes the place of Python, too
    stub.write_text('#!/bin/sh\necho "$PET_SIGNALS_TO_HANDLE $@"\n')
    stub.chmod(0o755)
    done = launch(*command.split(), cwd=tmp_path, PYTHON=str(stub), PATH=f'{tmp_path}:{os.environ["PATH"]}',
                  **variables)
    printed = done.stdout + done.stderr
    assert all(words in printed for words in expected) and (done.returncode == 2) == ('add --resume' in printed)
