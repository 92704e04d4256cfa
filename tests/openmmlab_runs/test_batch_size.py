"""The largest batch that fits, and what is told where nothing can be measured."""
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config

from openmmlab_runs.batch_size import choose_batch, largest_batch


@given(st.integers(0, 300), st.integers(1, 200))
def test_it_is_the_largest_power_of_two_that_fits(memory: int, most: int) -> None:
    asked: list[int] = []

    def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= memory

    found = largest_batch(fits, most)
    assert found == max((2 ** power for power in range(9) if 2 ** power <= min(memory, most)), default=0)
    assert asked == sorted({*asked}) and max(asked) <= min(most, max(1, 2 * found))  # none twice, or after a failure


@pytest.mark.parametrize('measured, batch, words', [
    (32, 32, 'The batch size is 32, the largest power of two up to 64 that fits into 80% of the free memory of GPU 1'),
    (0, 1, 'Not even one image fits into 80% of the free memory of GPU 1: give a smaller --scale.'),
    (None, 8, 'The batch size is 8, since none can be measured on GPU 1 (RuntimeError: no kernel).')])
def test_a_sentence_tells_what_was_measured(measured: int | None, batch: int, words: str,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(cfg: Config) -> int:
        if measured is None:
            raise RuntimeError('no kernel')
        return measured

    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    monkeypatch.setattr('torch.cuda.get_device_name', lambda: 'GPU 1')
    monkeypatch.setattr('openmmlab_runs.batch_size._measure', measure)
    found, told = choose_batch(Config(), 8)
    assert found == batch and told.startswith(words)


def test_without_a_gpu_it_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    assert choose_batch(Config(), 4) == (
        4, 'The batch size is 4, since there is no GPU whose memory could be measured.')
