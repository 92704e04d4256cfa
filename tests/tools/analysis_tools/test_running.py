from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from cpvt_lab import running
from cpvt_lab.candidates import Candidate, CannotMeasure
from cpvt_lab.memory import Usage
from cpvt_lab.running import COLUMNS, interleave, matrix_products, measure_group, peak_speed
from cpvt_lab.steps import Setting, Step

from .subjects import SETTING, Told


def ignore(what: str, done: int, total: int) -> None:
    pass


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is not what is tested here."""
    def measure_alone(subject: Told, candidate: Candidate, setting: object, limit: int) -> Usage:
        if candidate.name == 'huge':
            raise CannotMeasure('out of memory')
        return Usage(7_500_000, 12.5)

    monkeypatch.setattr(running, 'measure_alone', measure_alone)
    monkeypatch.setattr('cpvt_lab.running.SIDES', dict(cpu=(64,)))


def test_a_row_for_each_candidate() -> None:
    progress: list[tuple[str, int, int]] = []
    rows = measure_group(Told(), [Candidate('a'), Candidate('missing'), Candidate('a', shapes='static')], SETTING, 3, 1,
                         lambda *state: progress.append(state))
    assert list(rows) == [row['candidate'] for row in rows.values()] == ['a', 'missing', 'a compiled static']
    plain, missing, compiled = rows.values()
    assert missing['failure'] == 'missing cannot be built.' and missing['min_s'] is plain['failure'] is None
    assert all(tuple(row) == COLUMNS for row in rows.values())
    assert all(row['height'] == 64 and row['width'] == 96 and row['device'] == 'cpu' for row in rows.values())
    assert 0 < plain['min_s'] <= plain['median_s']
    assert (plain['memory_mb'], plain['gflops'], plain['max_abs_diff']) == (7.5, 0.006, 0.25)
    assert plain['share_of_peak'] == pytest.approx(
        plain['gflops'] / plain['min_s'] / plain['gemm_gflops_per_s'])
    assert plain['compile_s'] is None and compiled['compile_s'] == 12.5
    assert progress == [('memory of a', 0, 6), ('memory of missing', 1, 6), ('memory of a compiled static', 2, 6),
                        ('time', 4, 6), ('time', 5, 6), ('time', 6, 6)]


def test_memory_that_is_not_torch_s_is_not_measured() -> None:
    row, = measure_group(Told(), [Candidate('elsewhere')], SETTING, 1, 1, ignore).values()
    assert row['memory_mb'] is None and row['min_s'] > 0


@dataclass(frozen=True)
class Calling(Told):
    """Calls a function with the name of a candidate instead of running it."""
    function: Callable[[str], None] = print

    def step(self, candidate: Candidate, setting: Setting) -> Step:
        return replace(super().step(candidate, setting), run=lambda: self.function(candidate.name))


def test_what_does_not_fit_is_not_run() -> None:
    ran: list[str] = []
    rows = measure_group(Calling(function=ran.append), [Candidate('huge'), Candidate('small')], SETTING, 2, 1, ignore)
    assert rows['huge']['failure'] == 'out of memory' and rows['small']['failure'] is None
    assert ran == 3 * ['small']


@pytest.mark.parametrize('dtype', ['fp32', 'tf32'])
def test_tf32_is_allowed_where_it_is_asked_for_and_nowhere_else(dtype: str) -> None:
    found: list[tuple[bool, str]] = []

    def precision(name: str) -> None:
        found.append((torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()))

    precision('before')
    measure_group(Calling(function=precision), [Candidate('a')], replace(SETTING, dtype=dtype), 1, 1, ignore)
    precision('after')
    before, *during, after = found
    assert before == after
    assert during == 2 * [(True, 'high') if dtype == 'tf32' else (False, 'highest')]


def test_several_groups_go_on_with_the_threads_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr('torch.set_num_threads', threads.append)
    for number in (2, 1):
        measure_group(Told(), [Candidate('a')], replace(SETTING, threads=number), 1, 1, ignore)
    assert threads == [2, 1]


def test_calls_take_turns_in_changing_order(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    done: list[int] = []
    monkeypatch.setattr('cpvt_lab.steps.timer', lambda: len(called)**2)
    found = interleave({name: lambda name=name: called.append(name) for name in 'abcd'}, 6, 2, done.append)
    rounds = [''.join(called[i:i + 4]) for i in range(0, len(called), 4)]
    assert len(rounds) == 8 and all(sorted(order) == list('abcd') for order in rounds)
    assert len(set(rounds)) > 3
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys('abcd', 6)
    assert min(min(values) for values in found.values()) == 9**2 - 8**2  # the first two rounds do not count
    assert done == [1, 2, 3, 4, 5, 6]


def test_the_peak_is_that_of_the_fastest_product() -> None:
    assert peak_speed({'small': 10, 'large': 100}, {'small': [1., 2.], 'large': [50., 20.]}) == 10.


def test_products_count_two_operations_for_a_multiply_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('cpvt_lab.running.SIDES', dict(cpu=(8,)))
    found = matrix_products('cpu', torch.float32)
    assert list(found) == ['product of 8 x 8', 'convolution of 8 x 8']
    assert [operations for operations, _ in found.values()] == [2 * 8**3, 2 * 8**3]
    product, convolved = (call() for _, call in found.values())
    torch.testing.assert_close(convolved[0, :, :, 0], product, atol=1e-5, rtol=1e-4)
    assert all(call().dtype is torch.bfloat16 for _, call in matrix_products('cpu', torch.bfloat16).values())
