"""Processes that differ, or of which one fails, all end, and the main one says why."""
import atexit
import os
import shutil
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.engine import load_config, train
from openmmlab_tools.engine.ranks import process_group
from tests.helpers import Trained, toy_overrides
from tests.openmmlab_tools.toy import SEGMENTOR

# What the main rank says, by what each does in a folder of its own: its options, and whether it resumes.
FAULTS: dict[str, Callable[[int], tuple[dict[str, Any], str | None]]] = {
    'rank 1 fails: checkpoint one/iter_2.pth does not exist':
        lambda rank: ({'work_dir': 'one'}, None if rank else 'auto'),
    'rank 1 differs from rank 0: the hash of the weights is ': lambda rank: ({'work_dir': 'two'}, 'auto'),
    'rank 1 differs from rank 0: optim_wrapper.optimizer.lr is 0.002 (not 0.001): start all ranks with the same config,'
    ' options and files.': lambda rank: ({'optim_wrapper.optimizer.lr': 1e-3 * (1 + rank)}, None),
    '{data}/no/000000.png does not exist (and 7 more of this kind): put the files there, or correct train_dataloader.':
        lambda rank: ({'train_dataloader.dataset.data_prefix.seg_map_path': 'no'}, None)}


def write_threads(file: Path) -> None:
    file.write_text(' '.join(name.read_text().strip() for name in Path('/proc/self/task').glob('*/comm')))


def in_rank(rank: int, folder: Path, data: Path) -> None:
    atexit.register(write_threads, folder / f'{rank}.txt')  # the first one that is registered is the last one to run
    torch.set_num_threads(1)
    os.chdir(folder / str(rank))
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    errors = []
    for case in FAULTS.values():
        options, resume = case(rank)
        try:
            train(load_config(SEGMENTOR, toy_overrides(data, **{'train_cfg.max_iters': 4, **options})), resume=resume)
        except (ValueError, OSError, SystemExit) as error:
            errors.append(f'{error}')
    total = torch.ones(1)
    dist.all_reduce(total)  # the group is the caller's, and stays
    torch.save((errors, total.item()), folder / f'{rank}.pth')
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_that_differ_or_fail_all_end_with_one_sentence(trained: dict[str, Trained], toy_shapes: Path,
                                                             tmp_path: Path) -> None:
    for name in ('0/one', '0/two', '1/two'):
        (tmp_path / name).mkdir(parents=True)
        shutil.copy(trained['mmseg'].checkpoint, tmp_path / name / 'iter_2.pth')
        (tmp_path / name / 'last_checkpoint').write_text(str(tmp_path / name / 'iter_2.pth'))  # as a run notes it
    checkpoint = read_checkpoint(tmp_path / '1/two/iter_2.pth')
    next(iter(checkpoint['state_dict'].values())).add_(1)
    torch.save(checkpoint, tmp_path / '1/two/iter_2.pth')
    mp.spawn(in_rank, (tmp_path, toy_shapes), nprocs=2)
    (main, total), (other, _) = (torch.load(tmp_path / f'{rank}.pth', weights_only=True) for rank in range(2))
    expected = [start.replace('{data}', str(toy_shapes)) for start in FAULTS]
    assert [error[:len(start)] for error, start in zip(main, expected, strict=True)] == expected
    assert other == ['1'] * len(FAULTS) and total == 2  # the exit status
    for rank in range(2) if sys.platform == 'linux' else ():  # a thread of gloo that is left can abort the process
        assert (threads := (tmp_path / f'{rank}.txt').read_text()) and 'gloo' not in threads


@pytest.mark.skipif(torch.cuda.is_available(), reason='makes the group of a machine without a GPU')
@pytest.mark.parametrize('env_cfg, expected', [
    (dict(dist_cfg=dict(backend='nccl', timeout=90)), timedelta(seconds=90)), (dict(dist_cfg={}), None), ({}, None)])
def test_a_group_without_gpus_has_the_timeout_of_the_config(env_cfg: dict, expected: timedelta | None,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock()
    monkeypatch.setattr(dist, 'init_process_group', made)
    with process_group('pytorch', env_cfg):
        made.assert_called_once_with('gloo', timeout=expected)
