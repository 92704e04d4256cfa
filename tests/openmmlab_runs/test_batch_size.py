"""The largest batch that fits, and what is told where nothing can be measured."""
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.dataset import pseudo_collate

from openmmlab_runs.batch_size import _measure, choose_batch, largest_batch
from openmmlab_runs.engine import load_config
from tests.conftest import MASK_RCNN, UPERNET, toy_overrides


@given(st.integers(0, 300), st.integers(1, 200))
def test_it_is_the_largest_power_of_two_that_fits(memory: int, most: int) -> None:
    asked: list[int] = []

    def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= memory

    found = largest_batch(fits, most)
    assert found == max((2 ** power for power in range(9) if 2 ** power <= min(memory, most)), default=0)
    assert asked == sorted({*asked}) and max(asked) <= min(most, max(1, 2 * found))  # none twice, or after a failure


@pytest.mark.parametrize('has_gpu, measured, batch, words', [
    (True, 32, 32, 'The batch size is 32, the largest power of two up to 64 that fits into 80% of the free memory of'),
    (True, 0, 1, 'Not even one image fits into 80% of the free memory of A: give a smaller --scale.'),
    (True, None, 8, 'The batch size is 8, since none can be measured on A (RuntimeError: no kernel).'),
    (False, 32, 8, 'The batch size is 8, since there is no GPU whose memory could be measured.')])
def test_a_sentence_tells_what_was_measured(has_gpu: bool, measured: int | None, batch: int, words: str,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Mock(return_value=measured, side_effect=RuntimeError('no kernel') if measured is None else None)
    monkeypatch.setattr('torch.cuda.is_available', lambda: has_gpu)
    monkeypatch.setattr('torch.cuda.get_device_name', lambda: 'A')
    monkeypatch.setattr('openmmlab_runs.batch_size._measure', measure)
    found, told = choose_batch(Config(), 8)
    assert found == batch and told.startswith(words)


@pytest.mark.parametrize('config', [MASK_RCNN, UPERNET])
@pytest.mark.parametrize('is_error', [False, True])
def test_training_steps_are_measured_until_one_does_not_fit(config: Path, is_error: bool, toy_shapes: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps run on the CPU. Their memory is that of a GPU on which each image takes 20 of 100 free bytes."""
    tried: list[int] = []
    monkeypatch.setattr('torch.cuda.mem_get_info', lambda: (100, 200))
    monkeypatch.setattr('torch.cuda.reset_peak_memory_stats', lambda: None)
    monkeypatch.setattr('torch.cuda.max_memory_reserved', lambda: 20 * tried[-1])

    def collate(samples: list[Any]) -> Any:
        tried.append(len(samples))
        if is_error and len(samples) > 2:
            raise torch.cuda.OutOfMemoryError('too much')
        return pseudo_collate(samples)

    monkeypatch.setattr('openmmlab_runs.batch_size.pseudo_collate', collate)
    found = _measure(load_config(config, toy_overrides(toy_shapes)), 'cpu')
    assert (found, tried) == ((2, [1, 2, 4]) if is_error else (4, [1, 2, 4, 8]))
