"""The command lines as processes: an error is a sentence and a status, never a traceback."""
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, UPERNET, toy_overrides
from tests.processes import wait_until


def test_painting_in_several_processes_is_refused(run_tool: Callable[..., str], monkeypatch: pytest.MonkeyPatch,
                                                  ) -> None:
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
