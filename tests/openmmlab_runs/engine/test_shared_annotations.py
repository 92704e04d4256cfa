import tempfile
from pathlib import Path

import pytest
import torch
from mmengine.dataset import BaseDataset
from torch import distributed as dist
from torch import multiprocessing as mp

from openmmlab_runs.engine.shared_annotations import share_annotations


def share_in_rank(rank: int, folder: Path) -> None:
    """The last of three ranks has other annotations."""
    tempfile.tempdir = str(folder)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=3)
    dataset = BaseDataset(lazy_init=True, serialize_data=True)
    dataset.load_data_list = lambda: [dict(name=f'{rank == 2} {index}') for index in range(9)]
    dataset.full_init()
    before = [dataset.get_data_info(index) for index in range(9)]
    share_annotations(dataset)
    assert before == [dataset.get_data_info(index) for index in range(9)]
    # Device and inode of the removed files that this process maps from temporary folders of the hook.
    mapped = sorted({tuple(line.split()[3:5]) for line in Path(
        '/proc/self/maps').read_text().splitlines() if 'annotations.npy' in line})
    torch.save(mapped, folder / f'{rank}.pth')
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_with_the_same_annotations_share_them(tmp_path: Path) -> None:
    mp.spawn(share_in_rank, (tmp_path,), nprocs=3)
    files = [torch.load(tmp_path / f'{rank}.pth', weights_only=True) for rank in range(3)]
    assert files[0] == files[1] != files[2] and [len(mapped) for mapped in files] == [1, 1, 1]
