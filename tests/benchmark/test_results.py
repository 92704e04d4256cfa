import csv
from dataclasses import replace
from pathlib import Path

import pytest

from cpvt_mm.benchmark.candidates import Candidate
from cpvt_mm.benchmark.results import COLUMNS, Results
from cpvt_mm.errors import UserError

from .subjects import SETTING

RUN = dict(arch='nano', machine='a machine')
LARGER = replace(SETTING, height=128)


def rows(*names: str, setting=SETTING, **values: object) -> list[dict]:
    return [dict(candidate=name, **vars(setting), device='cpu', **values) for name in names]


def test_goes_on_from_what_is_there(tmp_path: Path) -> None:
    first = Results(tmp_path / 'new', RUN, resume=False)
    assert not first.has([Candidate('a')], SETTING)
    first.put(rows('a', min_s=0.25, gflops=1e-7, max_abs_diff=float('nan')) + rows('b', failure='out of memory'))
    again = Results(tmp_path / 'new', RUN, resume=True)
    assert again.has([Candidate('a'), Candidate('b')], SETTING)
    assert not again.has([Candidate('a')], LARGER) and not again.has([Candidate('a'), Candidate('c')], SETTING)
    a, b = again.rows
    assert (a['height'], a['min_s'], a['gflops'], a['failure'], str(a['max_abs_diff'])) == (64, 0.25, 1e-7, None, 'nan')
    assert (b['min_s'], b['failure']) == (None, 'out of memory')
    again.put(rows('a', setting=LARGER))
    again.put(rows('a', 'c', min_s=0.5))  # replaces the group
    with (tmp_path / 'new/results.csv').open() as file:
        found = list(csv.DictReader(file))
    assert tuple(found[0]) == COLUMNS
    assert [(row['candidate'], row['height'], row['min_s']) for row in found] == [
        ('a', '128', ''), ('a', '64', '0.5'), ('c', '64', '0.5')]


def test_no_results_are_lost_or_mixed(tmp_path: Path) -> None:
    Results(tmp_path, RUN, resume=True).put(rows('a'))
    with pytest.raises(UserError, match='is there already: add --resume'):
        Results(tmp_path, RUN, resume=False)
    with pytest.raises(UserError, match="is of a run with arch 'nano', not 'tiny'"):
        Results(tmp_path, dict(RUN, arch='tiny'), resume=True)
    assert len(Results(tmp_path, RUN, resume=True).rows) == 1
