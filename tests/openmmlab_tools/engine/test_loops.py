"""Loops check data and model, the random draws of an iteration follow from its number; workers that fail end a run."""
import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from openmmlab_tools.engine import loops
from openmmlab_tools.engine.loops import check_while_loading, limit_waiting, lost_workers
from openmmlab_tools.engine.seeding import SeededBatchSampler, seed_generators
from tests.helpers import refusal


@pytest.mark.parametrize('cfg, head, more, is_wrong', [
    ({}, {}, {}, True), ({}, {}, dict(ignore_index=254), False), ({}, dict(ignore_index=254), {}, False),
    (dict(val_evaluator=[dict(type='IoUMetric', ignore_index=254)]), {}, {}, False),
    ({}, {}, dict(metainfo={}), False)])  # classes are not known
def test_labels_that_are_no_class_are_named(tmp_path: Path, cfg: dict, head: dict, more: dict, is_wrong: bool
                                            ) -> None:
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / 'a.jpg')
    Image.fromarray(np.full((20, 30), 254, np.uint8)).save(tmp_path / 'a.png')
    init_default_scope('mmseg')
    loader = Runner.build_dataloader(dict(
        dataset=dict(type='BaseSegDataset', data_root=str(tmp_path), **{'metainfo': dict(classes=('a', 'b')), **more},
                     pipeline=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]),
        batch_size=1, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
        collate_fn=dict(type='pseudo_collate')))
    decode_head = nn.Module()
    vars(decode_head).update(head)
    check_while_loading(loader, nn.ModuleDict(dict(decode_head=decode_head)), cfg)
    if is_wrong:
        assert 'a.png has class 254, but there are 2 classes' in refusal(list, loader)
    else:
        batch, = loader
        assert torch.as_tensor(batch['gt_seg_map'][0]).eq(254).all()


def draw() -> tuple[float, ...]:
    return random.random(), np.random.rand(), torch.rand(()).item()


class Drawn(Dataset):
    """Five samples: the index and what the generators draw."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[float, ...]:
        return index, *draw()


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
    run, whole = Run(sampler, 0, False), []
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


def test_each_run_iteration_and_process_draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Run(InfiniteSampler, 0, True).train(1)
    assert Run(InfiniteSampler, 0, True, seed=1).train(1) != first
    monkeypatch.setattr('openmmlab_tools.engine.seeding.get_rank', lambda: 1)
    assert Run(InfiniteSampler, 0, True).train(1) != first
    draws = set()
    for numbers in ((0, 0), (0, 1), (1, 0)):
        seed_generators(*numbers)
        draws |= {*draw()}
    assert len(draws) == 9


class Fails:
    """A sample that does not come."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> object:
        return self.call()


@pytest.mark.parametrize('call, words', [
    (lambda: time.sleep(1e6), 'DataLoader timed out after 1 '), (lambda: os._exit(9), 'DataLoader wor')])
def test_workers_that_give_no_data_are_given_up_in_a_sentence(call: Callable, words: str,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, 'LONGEST', 1)
    loaders = [DataLoader(Fails(call), num_workers=number, timeout=time) for number, time in ((1, 0), (1, 9), (0, 0))]
    for loader in loaders:
        limit_waiting(loader)
    assert [loader.timeout for loader in loaders] == [1, 9, 0]
    with pytest.raises(RuntimeError) as raised:
        next(iter(loaders[0]))
    told = lost_workers(raised.value)
    assert str(told).startswith(f'the workers of a data loader have stopped ({words}')
    assert lost_workers(RuntimeError('CUDA error')) is None
