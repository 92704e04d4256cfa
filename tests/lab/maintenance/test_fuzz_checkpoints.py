"""Damaged checkpoints are read or refused; the program that tries many notices what is neither."""
import io
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from lab.maintenance.fuzz_checkpoints import MUTATIONS, ODD, originals, read_alone, use
from openmmlab_runs.errors import UserError
from tests.conftest import ROOT
from tests.tools.conftest import Run

SCRIPT = ROOT / 'lab/maintenance/fuzz_checkpoints.py'


def test_damaged_checkpoints_are_read_or_refused(run_tool: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run_tool(SCRIPT, '--count', 56, '--kept', tmp_path / 'kept') == ''
    rows = re.findall(r'^\| ([a-z ]+) \| (\d+) \| (\d+) \| 0 \| 0 \| 0 \|', capsys.readouterr().out, re.MULTILINE)
    assert [(kind, int(read) + int(refused)) for kind, read, refused in rows] == [(kind, 8) for kind in MUTATIONS]
    assert any(int(read) for _, read, _ in rows) and all(int(refused) for _, _, refused in rows)
    assert not (tmp_path / 'kept').exists()


PLAIN = {'torch.float16', 'torch.bfloat16', 'torch.float64', 'torch.float8_e4m3fn', 'torch.float8_e5m2',
         'float8_e8m0fnu', 'parameter', 'turned'}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('kind', ODD)
def test_odd_tensors_are_read_or_refused_by_all_that_read_checkpoints(kind: str, tmp_path: Path) -> None:
    content = torch.load(io.BytesIO(originals()['backbone.pth']), weights_only=True)
    name, path = 'stages.0.blocks.0.attn.q.weight', tmp_path / 'a.pth'
    content['state_dict'][name] = ODD[kind](content['state_dict'][name])
    torch.save(content, path)
    with nullcontext() if kind in PLAIN else pytest.raises(UserError, match=r'a\.pth .*\.$'):
        use(path)


@pytest.mark.parametrize(('read', 'outcome'), [
    (lambda path: os.kill(os.getpid(), signal.SIGKILL), 'crashed'), (lambda path: os._exit(7), 'crashed'),
    (lambda path: time.sleep(60), 'hung'), (lambda path: 1 / 0, 'other error'), (lambda path: {}, 'read')])
def test_what_is_neither_is_noticed(read: Callable[[Path], object], outcome: str, tmp_path: Path) -> None:
    assert read_alone(tmp_path / 'a.pth', read, seconds=1).outcome == outcome


def test_files_that_end_a_process_are_kept(run_tool: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('openmmlab_runs.checkpoints.reading.read_checkpoint', lambda path: os._exit(7))
    kept = tmp_path / 'kept'
    assert run_tool(SCRIPT, '--count', 7, '--kept', kept) == (
        f'error: 7 of 7 files were neither read nor refused: {kept} has them.')
    assert len(list(kept.iterdir())) == 7
