"""The program that injects faults into trainings: one of them, and its table."""
import json
from pathlib import Path

import pytest

from lab.maintenance.faults import KINDS, Result, table
from tests.conftest import ROOT
from tests.tools.conftest import Run

SCRIPT = ROOT / 'lab/maintenance/faults.py'


@pytest.mark.slow
def test_a_killed_rank_costs_nothing_but_iterations(run_tool: Run, tmp_path: Path,
                                                    capsys: pytest.CaptureFixture) -> None:
    arguments = '--count', 1, '--kinds', 'rank 1 killed', '--work-dir', tmp_path / 'faults'
    assert run_tool(SCRIPT, *arguments) == ''
    found, = (json.loads(line) for line in (tmp_path / 'faults/results.jsonl').read_text().splitlines())
    assert found['survived'] and found['equal'] and found['starts'] == 1  # torchrun has started the ranks again
    assert '[1/1] rank 1 killed: survived, ' in capsys.readouterr().out
    assert run_tool(SCRIPT, *arguments) == ''  # from the file
    assert '[1/1]' not in capsys.readouterr().out


def test_the_table_tells_what_did_not_survive() -> None:
    first, other = 'rank 0 killed', 'second node joins late'
    assert {first, other} <= set(KINDS)
    rows = table([Result(0, first, True, 1, 1, True, 1.), Result(1, first, False, 4, 4, None, 9.),
                  Result(2, other, True, 0, 2, None, 1.)]).splitlines()[2:]
    assert rows == ['| rank 0 killed | 2 | 1 | 2.5 (4) | 1 of 1 |',
                    '| second node joins late | 1 | 1 | 0.0 (0) | other number of ranks |',
                    '| all | 3 | 2 | 1.7 (4) | 1 of 1 |']
