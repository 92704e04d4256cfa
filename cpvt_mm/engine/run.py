"""Training and testing a config of any of the libraries."""
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.registry import RUNNERS
from mmengine.runner import Runner as MMEngineRunner

from cpvt_mm.checkpoints.loading import check_fills_backbones
from cpvt_mm.checkpoints.reading import check_fits, read_tensors_only
from cpvt_mm.errors import UserError

from .disk_space import full_disk_as_user_error
from .failures import failures_as_user_errors
from .paint_predictions import PaintPredictions
from .process_group import process_group
from .resuming import prepare_to_resume
from .runner import Runner


def train(cfg: Config, amp: bool = False, auto_scale_lr: bool = False, resume: str | None = None,
          hooks: Sequence[Hook] = ()) -> None:
    """Trains a config.

    A run that is killed and resumed, however often, ends with the weights of an uninterrupted one: see
    `DurableCheckpointHook` and `SeedEachIteration`. A config with a `runner_type` of its own gets that runner, and with
    it neither of the two nor the checks of the data, unless its class derives from `cpvt_mm.engine.Runner`.

    Inside a process group that the caller has made, the group is used and stays; see `process_group`.

    Args:
        cfg: A config of `load_config`. Changed in place.
        amp: Whether to train in mixed precision; needs a GPU. Defaults to False.
        auto_scale_lr: Whether to scale the learning rate with the batch size. Defaults to False.
        resume: The checkpoint to go on from, or 'auto' for the last whole one in `cfg.work_dir`, if there is one.
            Defaults to None: what the config says.
        hooks: More hooks than the config has. Defaults to none.

    Raises:
        UserError: If the config allows no such run, the first iteration fails, the checkpoint does not fit, or the disk
            is full.
    """
    if amp:
        cfg.optim_wrapper.update(type='AmpOptimWrapper', loss_scale='dynamic')
    if cfg.optim_wrapper.get('type') == 'AmpOptimWrapper' and get_device() == 'cpu':
        raise UserError('Mixed precision needs a GPU, but torch sees none: ' + (
            'leave out --amp.' if amp else 'train with optim_wrapper.type=OptimWrapper.'))
    if auto_scale_lr:
        if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
            raise UserError('--auto-scale-lr needs auto_scale_lr.base_batch_size, the batch size that the learning '
                            'rate is meant for, which the config does not set.')
        cfg.auto_scale_lr.enable = True
    checkpoint = prepare_to_resume(cfg, resume)
    with (process_group(cfg), full_disk_as_user_error(cfg.work_dir, resumable=True),
          failures_as_user_errors('training cannot begin', cfg.work_dir) as run):
        run.runner = runner = build_runner(cfg, hooks)
        if cfg.resume:
            check_fits(runner.model, cfg.load_from, checkpoint)
        elif cfg.get('load_from'):
            check_fills_backbones(runner.model, cfg.load_from)
        del checkpoint  # mmengine reads it again
        runner.train()


def test(cfg: Config, checkpoint: str | Path, show_dir: str | Path | None = None,
         hooks: Sequence[Hook] = ()) -> dict[str, Any]:
    """Evaluates a checkpoint.

    Inside a process group that the caller has made, the group is used and stays; see `process_group`.

    Args:
        cfg: A config of `load_config`. Changed in place.
        checkpoint: Path or URL.
        show_dir: Where to paint every image with its prediction. Defaults to None: nowhere.
        hooks: More hooks than the config has. Defaults to none.

    Returns:
        The metrics, by name.

    Raises:
        UserError: If the checkpoint does not fit, `show_dir` is given to several processes, or the disk is full.
    """
    if show_dir and (cfg.launcher != 'none' or get_world_size() > 1):
        where = f'the launcher is {cfg.launcher}' if cfg.launcher != 'none' else f'there are {get_world_size()}'
        raise UserError(f'--show-dir paints in one process only, but {where}: run test.py without a launcher.')
    cfg.update(resume=False, load_from=str(checkpoint))
    with (process_group(cfg), full_disk_as_user_error(cfg.work_dir, resumable=False),
          failures_as_user_errors('the test fails', cfg.work_dir) as run):
        run.runner = runner = build_runner(cfg, [*hooks, PaintPredictions(show_dir)] if show_dir else hooks)
        check_fits(runner.model, checkpoint)
        return runner.test()


def build_runner(cfg: Config, hooks: Sequence[Hook] = ()) -> MMEngineRunner:
    """Builds the runner of a config of `load_config`, with more hooks than the config has."""
    if cfg.get('visualizer'):
        # Named visualizers are shared in a process, with the folder they write to; each run gets its own.
        cfg.visualizer.pop('name', None)
    _import_package(cfg)
    read_tensors_only()
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    for hook in hooks:
        runner.register_hook(hook)
    return runner


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
