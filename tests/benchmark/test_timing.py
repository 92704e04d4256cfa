import pytest
import torch

from cpvt_mm.benchmark.gemm import peak, products
from cpvt_mm.benchmark.timing import Call, cpu_seconds, interleave


def test_calls_take_turns_in_changing_order() -> None:
    called: list[str] = []
    done: list[int] = []

    def clock(call: Call) -> float:
        call()
        return len(called)

    seconds = interleave({name: lambda name=name: called.append(name) for name in 'abcd'}, 6, 2, clock, done.append)
    rounds = [''.join(called[i:i + 4]) for i in range(0, len(called), 4)]
    assert len(rounds) == 8 and all(sorted(order) == list('abcd') for order in rounds)
    assert len(set(rounds)) > 3
    assert {name: len(values) for name, values in seconds.items()} == dict.fromkeys('abcd', 6)
    assert min(min(values) for values in seconds.values()) == 9  # the first two rounds do not count
    assert done == [1, 2, 3, 4, 5, 6]


def test_a_clock_calls_once() -> None:
    called: list[int] = []
    assert cpu_seconds(lambda: called.append(1)) >= 0
    assert called == [1]


def test_the_peak_is_that_of_the_fastest_product() -> None:
    assert peak({'small': 10, 'large': 100}, {'small': [1., 2.], 'large': [50., 20.]}) == 10.


def test_products_count_two_operations_for_a_multiply_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('cpvt_mm.benchmark.gemm.SIDES', dict(cpu=(8,)))
    found = products('cpu', torch.bfloat16)
    assert list(found) == ['product of 8 x 8', 'linear of 8 x 8']
    for operations, call in found.values():
        assert operations == 2 * 8**3
        assert call().shape == (8, 8) and call().dtype is torch.bfloat16
