import pytest
import torch

from cpvt_mm.benchmark import timing
from cpvt_mm.benchmark.gemm import peak, products
from cpvt_mm.benchmark.timing import interleave, seconds


def test_calls_take_turns_in_changing_order(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    done: list[int] = []
    monkeypatch.setattr(timing, 'timer', lambda: len(called)**2)
    found = interleave({name: lambda name=name: called.append(name) for name in 'abcd'}, 6, 2, done.append)
    rounds = [''.join(called[i:i + 4]) for i in range(0, len(called), 4)]
    assert len(rounds) == 8 and all(sorted(order) == list('abcd') for order in rounds)
    assert len(set(rounds)) > 3
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys('abcd', 6)
    assert min(min(values) for values in found.values()) == 9**2 - 8**2  # the first two rounds do not count
    assert done == [1, 2, 3, 4, 5, 6]


def test_a_call_is_timed_once() -> None:
    called: list[int] = []
    assert seconds(lambda: called.append(1)) >= 0
    assert called == [1]


def test_the_peak_is_that_of_the_fastest_product() -> None:
    assert peak({'small': 10, 'large': 100}, {'small': [1., 2.], 'large': [50., 20.]}) == 10.


def test_products_count_two_operations_for_a_multiply_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('cpvt_mm.benchmark.gemm.SIDES', dict(cpu=(8,)))
    found = products('cpu', torch.float32)
    assert list(found) == ['product of 8 x 8', 'convolution of 8 x 8']
    assert [operations for operations, _ in found.values()] == [2 * 8**3, 2 * 8**3]
    product, convolved = (call() for _, call in found.values())
    torch.testing.assert_close(convolved[0, :, :, 0], product, atol=1e-5, rtol=1e-4)
    assert all(call().dtype is torch.bfloat16 for _, call in products('cpu', torch.bfloat16).values())
