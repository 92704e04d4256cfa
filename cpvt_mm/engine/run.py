"""Training and testing a config of any of the libraries."""
import atexit
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from cpvt_mm.checkpoints.reading import check_fits, read_tensors_only
from cpvt_mm.errors import UserError
from cpvt_mm.hooks import DurableCheckpointHook

from .checking_runner import CheckingRunner
from .full_disk import report_full_disk
from .painting import PaintPredictions
from .resuming import prepare_to_resume
from .seeding import MARK, seed_each_iteration


def train(cfg: Config, amp: bool = False, auto_scale_lr: bool = False, resume: str | None = None,
          hooks: Sequence[Hook] = ()) -> None:
    """Trains a config.

    A run that is killed and resumed, as often as may be, ends with the weights of one that is not: see
    `DurableCheckpointHook` and `seed_each_iteration`.

    Args:
        cfg: As of `load_config`. Changed in place.
        amp: Whether to train in mixed precision; needs a GPU. Defaults to False.
        auto_scale_lr: Whether to scale the learning rate with the batch size. Defaults to False.
        resume: The checkpoint to go on from, or 'auto' for the last whole one in `cfg.work_dir`, if there is one.
            Defaults to None: as the config says.
        hooks: More hooks than the config has. Defaults to none.

    Raises:
        UserError: If the config allows no such run, the checkpoint does not fit, or the disk is full.
    """
    if amp:
        cfg.optim_wrapper.update(type='AmpOptimWrapper', loss_scale='dynamic')
    if cfg.optim_wrapper.get('type') == 'AmpOptimWrapper' and get_device() == 'cpu':
        raise UserError('Mixed precision (--amp, or optim_wrapper.type=AmpOptimWrapper in the config) needs a GPU, but '
                        'torch sees none: train with optim_wrapper.type=OptimWrapper.')
    if auto_scale_lr:
        if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
            raise UserError('--auto-scale-lr needs auto_scale_lr.base_batch_size, the batch size that the learning '
                            'rate is meant for, which the config does not set.')
        cfg.auto_scale_lr.enable = True
    checkpoint = prepare_to_resume(cfg, resume)
    meta = checkpoint.get('meta', {})
    with _leave_alone_on_error(), report_full_disk(cfg.work_dir):
        runner = build_runner(cfg)
        if cfg.resume:
            check_fits(runner.model, cfg.load_from, checkpoint)
        del checkpoint  # mmengine reads it again
        if cfg.resume and MARK not in meta:
            runner.logger.warning(f'{cfg.load_from} is from a run that was not seeded in each iteration, as '
                                  'mmengine alone does it: results may differ from those without an interruption.')
        seed_each_iteration(runner, meta)
        for hook in runner.hooks:
            if type(hook) is CheckpointHook:  # however the config names it
                hook.__class__ = DurableCheckpointHook
        for hook in hooks:
            runner.register_hook(hook)
        runner.train()


def test(cfg: Config, checkpoint: str | Path, show_dir: str | Path | None = None,
         hooks: Sequence[Hook] = ()) -> dict[str, Any]:
    """Evaluates a checkpoint.

    Args:
        cfg: As of `load_config`. Changed in place.
        checkpoint: Path or URL.
        show_dir: Where to paint every image with its prediction. Defaults to None: nowhere.
        hooks: More hooks than the config has. Defaults to none.

    Returns:
        The metrics, by name.

    Raises:
        UserError: If the checkpoint does not fit, or `show_dir` is given to several processes.
    """
    if show_dir and cfg.launcher != 'none':
        raise UserError(f'--show-dir paints in one process only, but the launcher is {cfg.launcher}: run test.py '
                        'without a launcher.')
    cfg.update(resume=False, load_from=str(checkpoint))
    runner = build_runner(cfg)
    check_fits(runner.model, checkpoint)
    if show_dir:
        runner.register_hook(PaintPredictions(show_dir))
    for hook in hooks:
        runner.register_hook(hook)
    with _leave_alone_on_error():
        return runner.test()


def _leave_together() -> None:
    """Ends the process group: one that outlives the interpreter, or loses a peer while it ends, aborts the process."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@contextmanager
def _leave_alone_on_error() -> Iterator[None]:
    """Has a process that fails, as on an image that it alone has, not wait for the others, which wait for it."""
    try:
        yield
    except BaseException:
        atexit.unregister(_leave_together)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        raise


def _import_package(cfg: Config) -> None:
    """Has the config that the runner writes to the work dir import this package when it is read.

    The inferencers of mmdet and mmseg read a checkpoint before they build the model whose type would import it, and
    torch refuses mmengine's log in it until the package is there.
    """
    custom = cfg.get('custom_imports') or {}
    imports = custom.get('imports') or []
    imports = [imports] if isinstance(imports, str) else list(imports)
    if 'cpvt_mm' not in imports:
        cfg.custom_imports = dict(custom, imports=[*imports, 'cpvt_mm'])


def build_runner(cfg: Config) -> Runner:
    """The runner of a config of `load_config`."""
    if cfg.launcher == 'pytorch' and get_device() == 'cpu':
        print_log('torch sees no GPU: running on the CPU, with gloo between the processes.', 'current')
        # mmengine assumes a GPU, but keeps a process group and a wrapper that are there.
        torch.distributed.init_process_group('gloo')
        atexit.register(_leave_together)
        cfg.setdefault('model_wrapper_cfg', dict(
            type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False)))
    if cfg.get('visualizer'):
        # Named visualizers are shared in a process, with the folder they write to; each run gets its own.
        cfg.visualizer.pop('name', None)
    _import_package(cfg)
    read_tensors_only()
    return RUNNERS.build(cfg) if 'runner_type' in cfg else CheckingRunner.from_cfg(cfg)
