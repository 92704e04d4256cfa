"""Ranks of a machine map one copy of the annotations, where they have the same."""
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.dataset import BaseDataset

from cpvt_mm.engine.shared_annotations import share_annotations

RANKS = 3


def dataset_of(rank: int) -> BaseDataset:
    """The last rank has other annotations."""
    dataset = BaseDataset(lazy_init=True, serialize_data=True)
    dataset.load_data_list = lambda: [dict(name=f'{rank == RANKS - 1} {index}') for index in range(9)]
    dataset.full_init()
    return dataset


def mapped_files() -> set[tuple[str, str]]:
    """Device and inode of the removed files that this process maps from temporary folders of the hook."""
    return {(line.split()[3], line.split()[4]) for line in Path('/proc/self/maps').read_text().splitlines()
            if 'annotations.npy' in line}


def in_rank(rank: int, folder: Path) -> None:
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=RANKS)
    dataset = dataset_of(rank)
    before = [dataset.get_data_info(index) for index in range(len(dataset))]
    share_annotations(dataset)
    after = [dataset.get_data_info(index) for index in range(len(dataset))]
    torch.save((before, after, mapped_files()), folder / f'{rank}.pth')
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_with_the_same_annotations_share_them(tmp_path: Path) -> None:
    mp.spawn(in_rank, (tmp_path,), nprocs=RANKS)
    files = []
    for rank in range(RANKS):
        before, after, mapped = torch.load(tmp_path / f'{rank}.pth', weights_only=False)
        assert before == after and len(mapped) == 1
        files.append(mapped)
    assert files[0] == files[1] != files[2]


def test_a_single_process_keeps_its_own() -> None:
    dataset = dataset_of(0)
    own = dataset.data_bytes
    share_annotations(dataset)
    assert dataset.data_bytes is own and isinstance(own, np.ndarray)
