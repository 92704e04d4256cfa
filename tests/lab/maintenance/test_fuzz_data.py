"""Changed data sets and configs end in a result or a sentence; the program that tries many notices what does not."""
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.maintenance.fuzz_data import run_alone
from openmmlab_runs.errors import UserError
from tests.conftest import ROOT
from tests.tools.conftest import Run

SCRIPT = ROOT / 'lab/maintenance/fuzz_data.py'


@pytest.mark.slow
def test_changed_data_ends_in_a_result_or_a_sentence(run_tool: Run, tmp_path: Path,
                                                     capsys: pytest.CaptureFixture) -> None:
    kinds = ('COCO', 'COCO, images', 'config')
    assert run_tool(SCRIPT, '--count', 50, '--kept', tmp_path / 'kept', '--kinds', *kinds) == ''
    rows = re.findall(r'^\| ([\w, ]+) \| (\d+) \| (\d+) \| 0 \| 0 \| 0 \|', capsys.readouterr().out, re.MULTILINE)
    assert [kind for kind, *_ in rows] == list(kinds) and sum(int(n) for _, *both in rows for n in both) == 50
    assert all(int(result) for _, result, _ in rows) and any(int(sentence) for *_, sentence in rows)
    assert not (tmp_path / 'kept').exists()


def fail(message: str) -> None:
    raise UserError(message)


@pytest.mark.parametrize(('run', 'outcome'), [
    (lambda: None, 'result'), (lambda: fail('a is 1: take 2.'), 'sentence'),
    (lambda: fail('no\nsentence'), 'other error'), (lambda: 1 / 0, 'other error'),
    (lambda: bytes(3 << 30), 'other error'), (lambda: time.sleep(60), 'hung')])
def test_how_a_case_ends_is_noticed(run: Callable[[], None], outcome: str) -> None:
    assert run_alone(run, seconds=1).outcome == outcome
