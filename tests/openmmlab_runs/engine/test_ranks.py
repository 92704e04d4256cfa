"""Processes that differ, or of which one fails, all end, and the main one says why; they share annotations."""
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.config import Config
from mmengine.dataset import BaseDataset

from openmmlab_runs.checkpoints.reading import read_checkpoint
from openmmlab_runs.engine import load_config, train
from openmmlab_runs.engine.process_group import process_group
from openmmlab_runs.engine.ranks import differences, settings, share_annotations
from tests.conftest import ROOT, UPERNET, Trained, toy_overrides

# What each rank does in a folder of its own: its options, and whether it resumes.
CASES: dict[str, Callable[[int], tuple[dict[str, Any], str | None]]] = {
    'only one has the checkpoint': lambda rank: ({'work_dir': 'one'}, None if rank else 'auto'),
    'their checkpoints differ': lambda rank: ({'work_dir': 'two'}, 'auto'),
    'their rates differ': lambda rank: ({'optim_wrapper.optimizer.lr': 1e-3 * (1 + rank)}, None),
    'the main one finds a fault': lambda rank: ({'train_dataloader.dataset.data_prefix.seg_map_path': 'no'}, None)}
EXPECTED = [
    'rank 1 fails: checkpoint one/iter_2.pth does not exist', 'rank 1 differs from rank 0: the hash of the weights is ',
    'rank 1 differs from rank 0: optim_wrapper.optimizer.lr is 0.002 (not 0.001): start all ranks with the same config,'
    ' options and files.',
    '{data}/no/000000.png does not exist (and 7 more of this kind): put the files there, or correct train_dataloader.']


def in_rank(rank: int, folder: Path, data: Path) -> None:
    torch.set_num_threads(1)
    os.chdir(folder / str(rank))
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    errors = []
    for case in CASES.values():
        options, resume = case(rank)
        try:
            train(load_config(UPERNET, toy_overrides(data, **{'train_cfg.max_iters': 4, **options})), resume=resume)
        except (ValueError, OSError, SystemExit) as error:
            errors.append(f'{error}')
    torch.save(errors, folder / f'{rank}.pth')
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_that_differ_or_fail_all_end_with_one_sentence(trained: dict[str, Trained], toy_shapes: Path,
                                                             tmp_path: Path) -> None:
    for name in ('0/one', '0/two', '1/two'):
        (tmp_path / name).mkdir(parents=True)
        shutil.copy(trained['mmseg'].checkpoint, tmp_path / name / 'iter_2.pth')
    checkpoint = read_checkpoint(tmp_path / '1/two/iter_2.pth')
    next(iter(checkpoint['state_dict'].values())).add_(1)
    torch.save(checkpoint, tmp_path / '1/two/iter_2.pth')
    mp.spawn(in_rank, (tmp_path, toy_shapes), nprocs=2)
    main, other = (torch.load(tmp_path / f'{rank}.pth', weights_only=True) for rank in range(2))
    expected = [start.replace('{data}', str(toy_shapes)) for start in EXPECTED]
    assert [error[:len(start)] for error, start in zip(main, expected, strict=True)] == expected
    assert other == ['1'] * len(CASES)  # the exit status


@pytest.mark.skipif(torch.cuda.is_available(), reason='makes the group of a machine without a GPU')
@pytest.mark.parametrize('env_cfg, expected', [
    (dict(dist_cfg=dict(backend='nccl', timeout=90)), timedelta(seconds=90)), (dict(dist_cfg={}), None), ({}, None)])
def test_a_group_without_gpus_has_the_timeout_of_the_config(env_cfg: dict, expected: timedelta | None,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock()
    monkeypatch.setattr(dist, 'init_process_group', made)
    with process_group(Config(dict(launcher='pytorch', env_cfg=env_cfg))):
        made.assert_called_once_with('gloo', timeout=expected)


def test_settings_that_matter_are_compared_by_key() -> None:
    first = settings(Config(dict(
        model=dict(type='A', depths=(1, 2)), param_scheduler=[dict(end=4), dict(end=8)], work_dir='a', launcher='none',
        train_dataloader=dict(num_workers=2, batch_size=2))))
    second = settings(Config(dict(
        model=dict(type='A', depths=(1, 3), norm=1), param_scheduler=[dict(end=4), dict(end=9)], work_dir='b',
        train_dataloader=dict(num_workers=3, batch_size=2))))
    assert differences(first, first) == ''
    assert differences(second, first) == (
        'model.depths is (1, 3) (not (1, 2)), param_scheduler.1.end is 9 (not 8), model.norm is 1 (not set)')
    many = {str(number): '' for number in range(6)}
    assert differences(many, {}).endswith(', and 2 more')


NOTES = '''
from pathlib import Path

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class NotesSamples(Hook):

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        with open('samples.txt', 'a') as file:
            print(*(Path(sample.img_path).name for sample in data_batch['data_samples']), file=file)
'''


@pytest.mark.slow
def test_the_data_goes_on_with_another_number_of_ranks(toy_shapes: Path, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'notes_samples.py').write_text(NOTES)
    monkeypatch.setenv('PYTHONPATH', f'{ROOT}:{tmp_path}')
    for ranks, iterations in ((2, 1), (1, 3), (2, 5), (2, 9)):  # 2, 2, 4 and 8 samples
        cfg = load_config(UPERNET, toy_overrides(toy_shapes, **{
            'train_cfg.max_iters': iterations, 'train_cfg.val_interval': 100, 'train_dataloader.batch_size': 1,
            'train_dataloader.num_workers': 1, 'default_hooks.checkpoint.interval': 1, 'randomness.seed': 0,
            'custom_imports.imports': ['notes_samples'], 'custom_hooks': [dict(type='NotesSamples')]}), 'work')
        cfg.dump(tmp_path / 'config.py')
        done = subprocess.run([ROOT / 'tools/dist_train.sh', 'config.py', str(ranks), '--resume'], cwd=tmp_path,
                              env={**os.environ, 'PYTHON': sys.executable, 'OMP_NUM_THREADS': '1'}, timeout=300,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert 'has 2 with 1: the data goes on where it was, a step has 2 samples (not 1)' in ''.join(
        log.read_text() for log in tmp_path.glob('work/*/*.log'))
    used = (tmp_path / 'samples.txt').read_text().split()
    assert len(set(used)) == len(set(used[:8])) == len(set(used[8:])) == len(used) / 2 == 8


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


def share_in_rank(rank: int, folder: Path, places: Sequence[str]) -> None:
    place = places[rank]
    if place.startswith('hidden:'):  # as a mount of its own hides it
        place = place.removeprefix('hidden:')
        load = np.load
        np.load = lambda path, **more: load(path.replace(os.path.dirname(place), place), **more)
    tempfile.tempdir = place
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=RANKS)
    dataset = dataset_of(rank)
    before = [dataset.get_data_info(index) for index in range(len(dataset))]
    share_annotations(dataset)
    after = [dataset.get_data_info(index) for index in range(len(dataset))]
    torch.save((before, after, mapped_files()), folder / f'{rank}.pth')
    dist.destroy_process_group()


def shared_by_ranks(folder: Path, places: Sequence[str]) -> list[set[tuple[str, str]]]:
    """The files that each rank maps, with a temporary folder for each; the data is that from before."""
    folder.mkdir()
    mp.spawn(share_in_rank, (folder, places), nprocs=RANKS)
    files = []
    for rank in range(RANKS):
        before, after, mapped = torch.load(folder / f'{rank}.pth', weights_only=False)
        assert before == after
        files.append(mapped)
    return files


@pytest.mark.slow
def test_ranks_with_the_same_annotations_share_them(tmp_path: Path) -> None:
    files = shared_by_ranks(tmp_path / 'one', [str(tmp_path)] * RANKS)
    assert files[0] == files[1] != files[2] and [len(mapped) for mapped in files] == [1, 1, 1]


def test_a_single_process_keeps_its_own() -> None:
    dataset = dataset_of(0)
    own = dataset.data_bytes
    share_annotations(dataset)
    assert dataset.data_bytes is own and isinstance(own, np.ndarray)
