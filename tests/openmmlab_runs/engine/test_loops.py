"""Loops check data and model; the random draws of an iteration follow from its number."""
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset, Compose, DefaultSampler, InfiniteSampler
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmseg.datasets import BaseSegDataset
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from openmmlab_runs.data.checked_pipeline import CheckedPipeline
from openmmlab_runs.engine.loops import check_while_loading
from openmmlab_runs.engine.seeding import SeededBatchSampler, seed_generators
from tests.conftest import refusal


class Videos(BaseDataset):
    """Samples are dicts of lists, as mmdet's of videos."""

    def load_data_list(self) -> list[dict[str, Any]]:
        return [dict(img_path=['a.jpg', 'b.jpg'], instances=[[], []], height=[2, 2], width=[3, 3])] * 2


def checked(dataset: dict[str, Any], model: nn.Module | None = None, cfg: dict[str, Any] | None = None) -> DataLoader:
    """A loader whose datasets are checked while they load."""
    init_default_scope('mmseg')
    loader = Runner.build_dataloader(dict(
        dataset=dataset, batch_size=1, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
        collate_fn=dict(type='pseudo_collate')))
    check_while_loading(loader, model or nn.Identity(), cfg or {})
    return loader


def labelled(folder: Path, value: int, **more: Any) -> dict[str, Any]:
    """A dataset of one image whose label map has a value."""
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(folder / 'a.jpg')
    Image.fromarray(np.full((20, 30), value, np.uint8)).save(folder / 'a.png')
    return dict(type=BaseSegDataset, data_root=str(folder), **{'metainfo': dict(classes=('a', 'b')), **more}, pipeline=[
        dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')])


def test_videos_pass() -> None:
    batches = list(checked(dict(type=Videos, pipeline=[lambda data: dict(data, ori_shape=[(2, 3), (2, 3)])])))
    assert len(batches) == 2 and 'ori_shape' in batches[0]


def test_only_mmengines_own_pipeline_is_replaced() -> None:
    own = type('Own', (Compose,), {})
    for kind, expected in ((Compose, CheckedPipeline), (own, own)):
        loader = DataLoader(Videos())
        loader.dataset.pipeline = kind([])
        check_while_loading(loader, nn.Identity(), {})
        assert type(loader.dataset.pipeline) is expected


def test_labels_that_are_no_class_are_named(tmp_path: Path) -> None:
    assert 'a.png has class 254, but there are 2 classes' in refusal(list, checked(labelled(tmp_path, 254)))


@pytest.mark.parametrize('value, cfg, head, more', [
    (255, {}, {}, dict(ignore_index=254)), (254, {}, {}, dict(ignore_index=254)), (254, {}, dict(ignore_index=254), {}),
    (254, dict(val_evaluator=[dict(type='IoUMetric', ignore_index=254)]), {}, {}),
    (254, {}, {}, dict(metainfo={})),  # classes are not known
])
def test_labels_that_cannot_be_told_wrong_pass(tmp_path: Path, value: int, cfg: dict, head: dict, more: dict) -> None:
    decode_head = nn.Module()
    vars(decode_head).update(head)
    batch, = checked(labelled(tmp_path, value, **more), nn.ModuleDict(dict(decode_head=decode_head)), cfg)
    assert torch.as_tensor(batch['gt_seg_map'][0]).eq(value).all()


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


def test_samplers_leave_the_generators_as_they_were() -> None:
    seed_generators(0)
    expected = [draw(), draw()]
    seeded = iter(Run(GlobalSampler, 0, True).batches)
    seed_generators(0)
    assert [draw() for _ in islice(seeded, 2)] == expected
    assert list(SeededBatchSampler([], 2, TORCHS, endless=True)) == []  # nothing to train on is no endless loop


def test_each_run_iteration_and_process_draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Run(InfiniteSampler, 0, True).train(1)
    assert Run(InfiniteSampler, 0, True, seed=1).train(1) != first
    monkeypatch.setattr('openmmlab_runs.engine.seeding.get_rank', lambda: 1)
    assert Run(InfiniteSampler, 0, True).train(1) != first
    draws = set()
    for numbers in ((0, 0), (0, 1), (1, 0)):
        seed_generators(*numbers)
        draws |= {*draw()}
    assert len(draws) == 9


@pytest.mark.parametrize('sampler, endless', [(InfiniteSampler, True), (DefaultSampler, True), (DefaultSampler, False)])
def test_other_numbers_of_ranks_go_on_in_an_epoch(sampler: type[Sampler], endless: bool,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    rank = ranks = 0
    monkeypatch.setattr('openmmlab_runs.engine.seeding.get_rank', lambda: rank)
    monkeypatch.setattr('openmmlab_runs.engine.seeding.get_world_size', lambda: ranks)
    monkeypatch.setattr('mmengine.dataset.sampler.get_dist_info', lambda: (rank, ranks))
    used, left = [], []
    for ranks, trained in ((2, 2), (1, 2), (4, 1), (3, 1), (2, 2)):  # at 6, 4 ranks do not all begin in one place
        before = len(used)
        for rank in range(ranks):  # noqa: B007, the functions above return it
            order = sampler(range(23), seed=0)
            batches = SeededBatchSampler(order, 1, TORCHS, endless)
            batches.begin_after(before, 0, order)
            numbered = iter(batches)
            used += [index for batch in islice(numbered, trained) for index in batch.indices]
            left.append(0 if endless else len(list(numbered)))
    assert len(used) == len(set(used)) == 17
    assert left[-1] == left[-2] == (0 if endless else 4)  # the same on all ranks, or they would wait for each other
