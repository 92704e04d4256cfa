"""Adds what this project promises for a run to its config: a config in, a config out."""
import copy
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.dist import is_distributed, sync_random_seed
from mmengine.hooks import CheckpointHook
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import HOOKS, LOOPS, METRICS, OPTIM_WRAPPER_CONSTRUCTORS, OPTIMIZERS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, TestLoop, ValLoop

from openmmlab_tools.config_walk import dicts
from openmmlab_tools.errors import UserError, did_you_mean
from openmmlab_tools.registry import find

from .config import of_run

# The hooks that each run gets, by their keys in `default_hooks`.
ADDED_HOOKS = dict(exact_resume='openmmlab_tools.ExactResumeHook', non_finite_loss='openmmlab_tools.NonFiniteLossHook',
                   portable_log='openmmlab_tools.PortableLogHook', same_start='openmmlab_tools.SameStartHook',
                   save_on_signal='openmmlab_tools.SaveOnSignalHook', report='openmmlab_tools.ReportHook',
                   scale='openmmlab_tools.ScaleHook')
MMENGINES = DefaultOptimWrapperConstructor


def prepare(cfg: Config) -> Config:
    """Returns a copy of a config that names the hooks, loops and samplers of this project, for mmengine's own runner.

    - `default_hooks` gets the hooks of `ADDED_HOOKS`. One that the config sets, or names elsewhere, stays; None turns
      it off. `CheckpointHook` becomes `DurableCheckpointHook`, with the same arguments.
    - mmengine's loops become loops that check their data. Loops of other classes stay.
    - The batch sampler of training is wrapped in `SeededBatchSampler`.
    - The workers of data loaders end with their process, unless the config sets a `worker_init_fn`.
    - `randomness.seed` is drawn, if it is open and all processes can agree on it.
    - Several processes can train on a CPU.
    - The optimizer has one group for parameters with equal options (`MergedOptimWrapperConstructor`), unless the config
      names a constructor that is not mmengine's.
    - mmdet's CocoMetric becomes that of this project.
    - Its copies have no secrets and no templates; see `RunConfig`.

    A config that is prepared already is returned unchanged. An optimizer of an unknown name is a UserError.
    """
    cfg = of_run(copy.deepcopy(cfg))
    scope = cfg.get('default_scope')
    wrapper = cfg.get('optim_wrapper') or {}
    name, constructor = (wrapper.get('optimizer') or {}).get('type'), wrapper.get('constructor') or MMENGINES.__name__
    if isinstance(name, str) and find(OPTIMIZERS, name, scope) is None:
        raise UserError(f'optim_wrapper.optimizer.type is {name}, which is not a registered optimizer'
                        f'{did_you_mean(name, OPTIMIZERS.module_dict)}.')
    if name and find(OPTIM_WRAPPER_CONSTRUCTORS, constructor, scope) is MMENGINES:
        wrapper['constructor'] = 'openmmlab_tools.MergedOptimWrapperConstructor'
    _set_hooks(cfg, scope)
    _set_loops(cfg, scope)
    _set_metrics(cfg, scope)
    for name in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        loader = cfg.get(name)
        # mmengine passes `disable_subprocess_warning` to its own function only.
        if isinstance(loader, dict) and not {'worker_init_fn', 'disable_subprocess_warning'} & {*loader}:
            loader['worker_init_fn'] = dict(type='openmmlab_tools.end_worker_with_parent')
    if isinstance(cfg.get('train_dataloader'), dict):
        _seed_batches(cfg.train_dataloader, endless='max_iters' in (cfg.get('train_cfg') or {}))
    randomness = cfg.get('randomness') or {}
    launched = cfg.get('launcher', 'none') != 'none'
    if randomness.get('seed') is None and (not launched or is_distributed()):
        cfg.randomness = dict(randomness, seed=sync_random_seed())
    if launched and get_device() == 'cpu' and cfg.get('model_wrapper_cfg') is None:
        cfg.model_wrapper_cfg = dict(  # mmengine's default would get the number of a GPU
            type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False))
    return cfg


def _set_hooks(cfg: Config, scope: str | None) -> None:
    # mmengine itself would add this one.
    hooks = ConfigDict({'checkpoint': dict(type='CheckpointHook', interval=1), **(cfg.get('default_hooks') or {})})
    given = [hook for hook in (*hooks.values(), *(cfg.get('custom_hooks') or ())) if isinstance(hook, dict)]
    for hook in given:
        if find(HOOKS, hook.get('type'), hook.get('_scope_', scope)) is CheckpointHook:
            hook['type'] = 'openmmlab_tools.DurableCheckpointHook'
    kinds = [find(HOOKS, hook.get('type'), hook.get('_scope_', scope)) for hook in given]
    for name, kind in ADDED_HOOKS.items():
        if name in hooks and hooks[name] is None:
            hooks[name] = dict(type='openmmlab_tools.NoHook')
        elif name not in hooks and HOOKS.get(kind) not in kinds:
            hooks[name] = dict(type=kind)
    cfg.default_hooks = hooks


def _set_loops(cfg: Config, scope: str | None) -> None:
    for name, default in (('train_cfg', None), ('val_cfg', ValLoop), ('test_cfg', TestLoop)):
        loop = cfg.get(name)
        if not isinstance(loop, dict):
            continue
        kind = find(LOOPS, loop['type'], scope) if 'type' in loop else default
        if name == 'train_cfg' and 'by_epoch' in loop and 'type' not in loop:
            kind = EpochBasedTrainLoop if loop.pop('by_epoch') else IterBasedTrainLoop
        if kind in (EpochBasedTrainLoop, IterBasedTrainLoop, ValLoop, TestLoop):
            loop['type'] = f'openmmlab_tools.Checked{kind.__name__}'


def _set_metrics(cfg: Config, scope: str | None) -> None:
    for name in ('val_evaluator', 'test_evaluator'):
        for metric in dicts(cfg.get(name)):
            kind = find(METRICS, metric.get('type'), metric.get('_scope_', scope))
            if f'{getattr(kind, "__module__", "")}.'.startswith('mmdet.') and kind.__name__ == 'CocoMetric':
                metric['type'] = 'openmmlab_tools.CocoMetric'


def _seed_batches(loader: dict[str, Any], endless: bool) -> None:
    inner = loader.get('batch_sampler') or dict(
        type='torch.utils.data.BatchSampler', drop_last=loader.pop('drop_last', False))
    if inner.get('type') != 'openmmlab_tools.SeededBatchSampler':
        loader['batch_sampler'] = dict(type='openmmlab_tools.SeededBatchSampler', batch_sampler=inner, endless=endless)
    loader.setdefault('batch_size', 1)  # torch's default; mmengine requires it if there is a batch sampler
