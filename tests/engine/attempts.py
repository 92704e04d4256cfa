"""Training in processes that get killed."""
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from functools import cache
from multiprocessing.context import BaseContext
from pathlib import Path

import torch
from mmengine.config import Config

from cpvt_mm.engine import load_config, train
from tests.conftest import MASK_RCNN, UPERNET, toy_overrides

Make = Callable[[Path, Path], Config]


def segmentor(data: Path, work_dir: Path) -> Config:
    """Eight iterations with drop path, dropout, random flips, an averaged model and a best checkpoint."""
    options = toy_overrides(data, **{
        'train_cfg.max_iters': 8, 'train_cfg.val_interval': 4, 'model.backbone.drop_path_rate': 0.3,
        'train_dataloader.dataset.pipeline.2.scale': (64, 64), 'val_dataloader.dataset.pipeline.1.scale': (64, 64),
        'default_hooks.checkpoint.interval': 2, 'default_hooks.checkpoint.max_keep_ckpts': 1,
        'default_hooks.checkpoint.save_best': 'mIoU', 'custom_hooks': [dict(type='EMAHook')]})
    return load_config(UPERNET, options, str(work_dir))


def detector(data: Path, work_dir: Path) -> Config:
    """Three epochs of four images, whose flips are drawn in a worker that stays."""
    options = toy_overrides(data, **{
        'train_dataloader.dataset.pipeline.2.scale': (64, 64), 'train_dataloader.dataset.indices': 4,
        'train_dataloader.sampler.type': 'DefaultSampler',
        'train_dataloader.num_workers': 1, 'train_dataloader.persistent_workers': True,
        'model.backbone.drop_path_rate': 0.3,
        'default_hooks.checkpoint.by_epoch': True, 'default_hooks.checkpoint.interval': 1,
        'default_hooks.checkpoint.max_keep_ckpts': 1})
    cfg = load_config(MASK_RCNN, options, str(work_dir))
    cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=3, val_interval=100)
    return cfg


def events_in(folder: Path, on_event: Callable[[str], None]) -> None:
    """Calls back before each file in a folder is opened to write, renamed or removed in this process."""

    def hook(event: str, args: tuple) -> None:
        writing = event == 'open' and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if (writing or event in ('os.rename', 'os.remove')) and str(args[0]).startswith(str(folder)):
            on_event(f'{event} {Path(args[0]).name}')

    sys.addaudithook(hook)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_event(number: int, folder: Path) -> None:
    """Kills this process in front of one of its steps in a folder, counted from 0."""
    steps = iter(range(number + 1))

    def on_event(event: str) -> None:
        if next(steps) == number:
            die()

    events_in(folder, on_event)


def die_half_written(number: int, folder: Path) -> None:
    """Kills this process in the middle of the bytes of a checkpoint, counted from 0."""
    write, files = Path.write_bytes, iter(range(number + 1))

    def write_half(path: Path, content: bytes) -> int:
        if next(files) == number:
            write(path, content[:len(content) // 2])
            die()
        return write(path, content)

    Path.write_bytes = write_half


def _train(make: Make, data: Path, work_dir: Path, trap: Callable[[int, Path], None] | None, number: int) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(work_dir.parent / 'output.txt', os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    if trap:
        trap(number, work_dir)
    train(make(data, work_dir), resume='auto')


def attempt(make: Make, data: Path, work_dir: Path, trap: Callable[[int, Path], None] | None = None, number: int = 0,
            seconds: float | None = None) -> bool:
    """Trains, from the last checkpoint if there is one, in a process that may be killed.

    Args:
        make: Makes the config.
        data: The toy data.
        work_dir: Its parent gets `output.txt`.
        trap: Kills the process, given `number` and `work_dir`. Defaults to None.
        number: For `trap`. Defaults to 0.
        seconds: After which the process is killed. Defaults to None: never.

    Returns:
        Whether training has ended.
    """
    process = context().Process(target=_train, args=(make, data, work_dir, trap, number))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), (work_dir.parent / 'output.txt').read_text()
    return process.exitcode == 0


@cache
def context() -> BaseContext:
    """Forks processes from one that has imported all that training needs: that takes seconds."""
    forking = multiprocessing.get_context('forkserver')
    forking.set_forkserver_preload([__name__, 'mmdet.apis', 'mmseg.apis'])
    return forking
