"""The randomness of an iteration follows from its number."""
import random
from itertools import islice

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from cpvt_mm.engine.seeding import SeededBatches, seed_generators


class Drawn(Dataset):
    """Five samples: the index and what the generators draw."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[float, ...]:
        return index, random.random(), np.random.rand(), torch.rand(()).item()


def batches(sampler: type[Sampler], first: int, endless: bool, workers: int, total: int, epoch: int = 0, seed: int = 0
            ) -> list:
    order = sampler(Drawn(), shuffle=True, seed=0)
    order.set_epoch(epoch)
    seeded = SeededBatches(BatchSampler(order, 2, drop_last=False), seed, first, endless)
    loader = DataLoader(Drawn(), batch_sampler=seeded, num_workers=workers, collate_fn=list)
    return list(islice(loader, total))


@pytest.mark.parametrize('sampler', [InfiniteSampler, DefaultSampler])
@pytest.mark.parametrize('workers', [0, 2])
def test_loops_without_epochs_go_on_at_a_batch(sampler: type[Sampler], workers: int) -> None:
    whole = batches(sampler, first=0, endless=True, workers=0, total=8)
    torch.rand(3)
    assert batches(sampler, first=4, endless=True, workers=workers, total=4) == whole[4:]
    # Each pass has its order, and each batch its draws.
    samples = [sample for batch in whole for sample in batch]
    assert [index for index, *_ in samples[:5]] != [index for index, *_ in samples[5:10]]
    draws = [draw for _, *drawn in samples for draw in drawn]
    assert len(set(draws)) == len(draws)


def test_loops_with_epochs_go_on_at_an_epoch() -> None:
    seeded = SeededBatches(BatchSampler(DefaultSampler(Drawn(), seed=0), 2, drop_last=False), 0, first=0, endless=False)
    loader = DataLoader(Drawn(), batch_sampler=seeded, collate_fn=list)
    whole = []
    for epoch in range(3):
        seeded.sampler.set_epoch(epoch)
        whole.append(list(loader))
    assert len(loader) == len(whole[0]) == 3
    assert batches(DefaultSampler, first=6, endless=False, workers=2, total=9, epoch=2) == whole[2]
    assert whole[1] != whole[2]


def test_nothing_to_train_on_is_no_endless_loop() -> None:
    assert list(SeededBatches([], seed=0, first=0, endless=True)) == []


def test_each_run_iteration_and_process_draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    first = batches(InfiniteSampler, first=0, endless=True, workers=0, total=1)
    assert batches(InfiniteSampler, first=0, endless=True, workers=0, total=1, seed=1) != first
    monkeypatch.setattr('cpvt_mm.engine.seeding.get_rank', lambda: 1)
    assert batches(InfiniteSampler, first=0, endless=True, workers=0, total=1) != first
    draws = set()
    for numbers in ((0, 0), (0, 1), (1, 0)):
        seed_generators(*numbers)
        draws |= {random.random(), np.random.rand(), torch.rand(()).item()}
    assert len(draws) == 9
