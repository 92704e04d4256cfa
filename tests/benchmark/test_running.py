from dataclasses import replace

import pytest

from cpvt_mm.benchmark import running
from cpvt_mm.benchmark.candidates import Candidate, CannotMeasure
from cpvt_mm.benchmark.memory import Usage
from cpvt_mm.benchmark.running import measure_group

from .subjects import SETTING, Told


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is not what is tested here."""
    def measure_alone(subject: Told, candidate: Candidate, setting: object, limit: int) -> Usage:
        if candidate.name == 'huge':
            raise CannotMeasure('out of memory')
        return Usage(7_500_000, 12.5)

    monkeypatch.setattr(running, 'measure_alone', measure_alone)
    monkeypatch.setattr('cpvt_mm.benchmark.gemm.SIDES', dict(cpu=(64,)))


def test_a_row_for_each_candidate() -> None:
    progress: list[tuple[str, float]] = []
    rows = measure_group(Told(), [Candidate('a'), Candidate('missing'), Candidate('a', shapes='static')], SETTING, 3, 1,
                         lambda *state: progress.append(state))
    assert [row['candidate'] for row in rows] == ['a', 'missing', 'a compiled static']
    plain, missing, compiled = rows
    assert missing['failure'] == 'missing cannot be built.' and 'min_s' not in missing
    assert all(row['height'] == 64 and row['width'] == 96 and row['device'] == 'cpu' for row in rows)
    assert 0 < plain['min_s'] <= plain['median_s']
    assert (plain['memory_mb'], plain['gflops'], plain['max_abs_diff']) == (7.5, 0.006, 0.25)
    assert plain['share_of_peak'] == pytest.approx(
        plain['gflops'] / plain['min_s'] / plain['gemm_gflops_per_s'])
    assert plain['compile_s'] is None and compiled['compile_s'] == 12.5
    assert [part for _, part in progress] == sorted(part for _, part in progress) and progress[-1][1] == 1
    assert progress[1][0] == 'forward, 2 x 64 x 96, fp32, 1 thread: memory of missing'


def test_what_does_not_fit_is_not_run() -> None:
    ran: list[str] = []

    class Seen(Told):
        def step(self, candidate: Candidate, setting: object) -> object:
            step = super().step(candidate, setting)
            return replace(step, run=lambda: ran.append(candidate.name))

    rows = measure_group(Seen(), [Candidate('huge'), Candidate('small')], SETTING, 2, 1, lambda *state: None)
    assert rows[0]['failure'] == 'out of memory' and 'failure' not in rows[1]
    assert ran == 3 * ['small']


def test_several_groups_go_on_with_the_threads_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr('torch.set_num_threads', threads.append)
    for number in (2, 1):
        measure_group(Told(), [Candidate('a')], replace(SETTING, threads=number), 1, 1, lambda *state: None)
    assert threads == [2, 1]
