"""The randomness of an iteration follows from its number."""
import random
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import DataLoader, Dataset, Sampler

from cpvt_mm.engine.seeding import SeededBatchSampler, seed_generators


class Drawn(Dataset):
    """Five samples: the index and what the generators draw."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[float, ...]:
        return index, random.random(), np.random.rand(), torch.rand(()).item()


class GlobalSampler(DefaultSampler):
    """A sampler that draws from the generators of all, as mmdet's GroupMultiSourceSampler does."""

    def __iter__(self) -> Iterator[int]:
        for index in torch.randperm(5).tolist():
            yield (index + random.randrange(5) + np.random.randint(5)) % 5


TORCHS = dict(type='torch.utils.data.BatchSampler', drop_last=False)


class Run:
    """Training, at an iteration."""

    def __init__(self, sampler: type[Sampler], first: int, endless: bool, workers: int = 0, epoch: int = 0,
                 seed: int = 0) -> None:
        order = sampler(Drawn(), shuffle=True, seed=0)
        order.set_epoch(epoch)
        torch.manual_seed(seed)
        self.batches = SeededBatchSampler(order, 2, TORCHS, endless)
        self.batches.position = first
        self.loader = DataLoader(Drawn(), batch_sampler=self.batches, num_workers=workers, collate_fn=list)

    def train(self, total: int, looked_at: int = 0) -> list:
        """Trains so many iterations, and after each looks at some batches for another reason."""
        trained = []
        for batch in islice(self.loader, total):
            trained.append(batch)
            self.batches.position += 1
            list(islice(self.loader, looked_at))
        return trained


@pytest.mark.parametrize('sampler', [InfiniteSampler, DefaultSampler, GlobalSampler])
@pytest.mark.parametrize('workers', [0, 2])
def test_loops_without_epochs_go_on_at_a_batch(sampler: type[Sampler], workers: int) -> None:
    whole = Run(sampler, 0, True).train(8)
    torch.rand(3)
    assert Run(sampler, 4, True, workers=workers).train(4) == whole[4:]
    # Each pass has its order, and each batch its draws.
    samples = [sample for batch in whole for sample in batch]
    assert [index for index, *_ in samples[:5]] != [index for index, *_ in samples[5:10]]
    draws = [draw for _, *drawn in samples for draw in drawn]
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize('sampler', [DefaultSampler, GlobalSampler])
def test_loops_with_epochs_go_on_in_an_epoch(sampler: type[Sampler]) -> None:
    run = Run(sampler, 0, False)
    whole = []
    for epoch in range(3):
        run.batches.sampler.set_epoch(epoch)
        whole.append(run.train(9))
    assert len(run.loader) == len(whole[0]) == 3
    assert Run(sampler, 6, False, workers=2, epoch=2).train(9) == whole[2]
    assert whole[1] != whole[2]
    run = Run(sampler, 7, False, epoch=2)
    run.batches.skip = 1
    assert run.train(9) == whole[2][1:]


@pytest.mark.parametrize('sampler', [DefaultSampler, GlobalSampler])
@pytest.mark.parametrize('endless', [True, False])
def test_who_else_looks_at_batches_changes_nothing(sampler: type[Sampler], endless: bool) -> None:
    run, other = (Run(sampler, 0, endless) for _ in range(2))
    assert other.train(3, looked_at=2) == run.train(3)
    assert next(iter(other.loader)) == next(iter(run.loader))


def test_samplers_leave_the_generators_as_they_were() -> None:

    def draw() -> tuple[float, ...]:
        return random.random(), np.random.rand(), torch.rand(()).item()

    seed_generators(0)
    expected = [draw(), draw()]
    seeded = iter(Run(GlobalSampler, 0, True).batches)
    seed_generators(0)
    assert [draw() for _ in islice(seeded, 2)] == expected


def test_nothing_to_train_on_is_no_endless_loop() -> None:
    assert list(SeededBatchSampler([], 2, TORCHS, endless=True)) == []


def test_each_run_iteration_and_process_draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Run(InfiniteSampler, 0, True).train(1)
    assert Run(InfiniteSampler, 0, True, seed=1).train(1) != first
    monkeypatch.setattr('cpvt_mm.engine.seeding.get_rank', lambda: 1)
    assert Run(InfiniteSampler, 0, True).train(1) != first
    draws = set()
    for numbers in ((0, 0), (0, 1), (1, 0)):
        seed_generators(*numbers)
        draws |= {random.random(), np.random.rand(), torch.rand(()).item()}
    assert len(draws) == 9
