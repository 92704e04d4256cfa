"""Training in processes that get killed."""
import multiprocessing
import os
import resource
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.config import Config

from cpvt_mm.engine import load_config
from tests.conftest import MASK_RCNN, ROOT, UPERNET, toy_overrides

SMALL = {'model.backbone.drop_path_rate': 0.3, 'train_dataloader.dataset.pipeline.2.scale': (64, 64),
         'default_hooks.checkpoint.max_keep_ckpts': 1}


def segmentor(data: Path, work_dir: Path) -> Config:
    """Eight iterations with drop path, dropout, random flips, an averaged model and a best checkpoint."""
    return load_config(UPERNET, toy_overrides(data, **SMALL, **{
        'train_cfg.max_iters': 8, 'train_cfg.val_interval': 4, 'val_dataloader.dataset.pipeline.1.scale': (64, 64),
        'default_hooks.checkpoint.interval': 2, 'default_hooks.checkpoint.save_best': 'mIoU',
        'custom_hooks': [dict(type='EMAHook')]}), str(work_dir))


def detector(data: Path, work_dir: Path) -> Config:
    """Three epochs of four images, whose flips are drawn in a worker that stays."""
    cfg = load_config(MASK_RCNN, toy_overrides(data, **SMALL, **{
        'train_dataloader.dataset.indices': 4, 'train_dataloader.sampler.type': 'DefaultSampler',
        'train_dataloader.batch_sampler': dict(type='AspectRatioBatchSampler'),
        'train_dataloader.num_workers': 1, 'train_dataloader.persistent_workers': True,
        'default_hooks.checkpoint.by_epoch': True, 'default_hooks.checkpoint.interval': 1}), str(work_dir))
    cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=3)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    return cfg


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_step(number: int) -> None:
    """Kills this process in front of one of its steps with checkpoints: to open, rename or remove a file."""
    steps = iter(range(number + 1))

    def hook(event: str, args: tuple) -> None:
        step = event in ('os.rename', 'os.remove') or (event == 'open' and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR))
        if step and ('.pth' in str(args[0]) or 'last_checkpoint' in str(args[0])) and next(steps) == number:
            die()

    sys.addaudithook(hook)


def die_half_written(number: int) -> None:
    """Kills this process in the middle of the bytes of a checkpoint."""
    write, files = Path.write_bytes, iter(range(number + 1))

    def write_half(path: Path, content: bytes) -> int:
        if next(files) == number:
            write(path, content[:len(content) // 2])
            die()
        return write(path, content)

    Path.write_bytes = write_half


def limit_files(number: int) -> None:
    """Has writing fail as on a full disk when a file gets larger than so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))


def in_child(output: Path, arguments: list[str], trap: Callable[[int], None] | None, number: int) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if trap:
        trap(number)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name='__main__')


def run(output: Path, tool: Path, *arguments: object, trap: Callable[[int], None] | None = None, number: int = 0,
        seconds: float | None = None) -> int:
    """Runs a tool in a process that may be killed.

    Args:
        output: The file for what it prints.
        tool: The script.
        arguments: Of its command line.
        trap: What is to happen to the process. Defaults to None.
        number: When, for `trap`. Defaults to 0.
        seconds: After which the process is killed. Defaults to None: never.

    Returns:
        The status that the process ended with.
    """
    # Forked from one that has imported all that training needs, which takes seconds.
    forking = multiprocessing.get_context('forkserver')
    forking.set_forkserver_preload([__name__, 'mmdet.apis', 'mmseg.apis'])
    process = forking.Process(target=in_child, args=(output, [*map(str, (tool, *arguments))], trap, number))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode


def attempt(cfg: Config, **how: Any) -> int:
    """Trains a config, or goes on; beside its work dir go a file of it, and `output.txt`. See `run`."""
    config = Path(f'{cfg.work_dir}.py')
    cfg.dump(config)
    return run(config.parent / 'output.txt', ROOT / 'tools/train.py', config, '--resume', **how)
