"""The command lines: each error is a sentence and a status, never a traceback."""
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT, UPERNET, toy_overrides
from tests.processes import wait_until

Run = Callable[..., str]


def roots(data: Path) -> list[str]:
    return [f'{split}_dataloader.dataset.data_root={data}' for split in ('train', 'val', 'test')]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_missing_image_is_named(run_tool: Run, toy_shapes: Path) -> None:
    message = run_tool('train.py', UPERNET, '--cfg-options', *roots(toy_shapes),
                       'train_dataloader.dataset.data_prefix.seg_map_path=nowhere')
    assert message.startswith(f'error: {toy_shapes}/nowhere/')
    assert 'does not exist' in message and '\n' not in message


def test_an_unreadable_config_is_named(run_tool: Run, tmp_path: Path) -> None:
    (tmp_path / 'config.py').write_text('model = dict(')
    for tool, arguments in {'train.py': ['config.py'], 'test.py': ['config.py', 'x.pth']}.items():
        assert run_tool(tool, *arguments).startswith('error: config config.py cannot be read (SyntaxError')
        assert run_tool(tool, 'no.py', *arguments[1:]) == 'error: config no.py does not exist: check the path.'


@pytest.mark.slow
def test_a_checkpoint_that_does_not_fit_is_named(run_tool: Run, toy_shapes: Path, tmp_path: Path) -> None:
    torch.save(dict(meta={}, optimizer={}, message_hub={}, state_dict=dict(weight=torch.ones(1))),
               tmp_path / 'other.pth')
    data = ['--cfg-options', *roots(toy_shapes)]
    for arguments in (['test.py', UPERNET, 'other.pth'], ['train.py', UPERNET, '--resume', 'other.pth']):
        message = run_tool(*arguments, *data)
        assert message.startswith('error: checkpoint other.pth does not fit the model of the config')
        assert '1 left over (weight)' in message
    assert run_tool('test.py', UPERNET, 'no.pth', *data) == 'error: checkpoint no.pth does not exist: check the path.'


@pytest.mark.skipif(torch.cuda.is_available(), reason='tells what happens without a GPU')
def test_amp_and_auto_scale_lr_say_what_they_need(run_tool: Run) -> None:
    assert run_tool('train.py', UPERNET, '--amp').startswith('error: Mixed precision')
    amp = ROOT / 'configs/pyramid_cpvt/mask-rcnn_pyramid-cpvt-s_fpn_amp-ms-crop-3x_coco.py'
    assert run_tool('train.py', amp).startswith('error: Mixed precision')
    assert run_tool('train.py', UPERNET, '--auto-scale-lr').startswith('error: --auto-scale-lr needs')


@pytest.mark.parametrize('launcher, variable', [('pytorch', 'RANK'), ('slurm', 'SLURM_PROCID'),
                                                ('mpi', 'OMPI_COMM_WORLD_RANK')])
def test_a_launcher_that_started_nothing_is_named(run_tool: Run, launcher: str, variable: str) -> None:
    message = run_tool('train.py', UPERNET, '--launcher', launcher)
    assert message.startswith(f'error: --launcher {launcher} is for processes that {launcher} starts, but {variable}')


def test_painting_in_several_processes_is_refused(run_tool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('RANK', '0')
    message = run_tool('test.py', UPERNET, 'x.pth', '--show-dir', 'painted', '--launcher', 'pytorch')
    assert message.startswith('error: --show-dir paints in one process only')


def test_a_new_process_prints_one_line_and_ends_with_status_1(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, ROOT / 'tools/train.py', 'no.py'], capture_output=True, text=True,
                          cwd=tmp_path, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == 'error: config no.py does not exist: check the path.'
    assert 'Traceback' not in done.stderr


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
    assert process.returncode == 1
    assert err.splitlines()[-1] == 'Interrupted: --resume continues from the last checkpoint in work.'
    assert 'Traceback' not in err
