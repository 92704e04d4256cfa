"""Steps that check and complete a config, in their order.

`load_config` runs `for_reading`, `train` runs `for_training` and then `at_start`, and `test` runs `for_test`. Then
`prepare` completes the config, and the runner is built. These five functions, at the top of this file, are lists of the
steps below. A step checks or completes the config, or a part of it, in place. Other files get parts and values.
"""
import copy
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.dist import get_world_size, is_distributed, sync_random_seed
from mmengine.registry import HOOKS, LOOPS, METRICS, OPTIM_WRAPPER_CONSTRUCTORS, OPTIMIZERS, Registry
from mmengine.runner import Runner

from openmmlab_tools.checkpoints.loading import bands_loader
from openmmlab_tools.checkpoints.reading import Checkpoint, read_weights
from openmmlab_tools.config_walk import dicts, walk
from openmmlab_tools.data.datasets import SPLITS, unwrap
from openmmlab_tools.errors import UserError, did_you_mean
from openmmlab_tools.libraries import require
from openmmlab_tools.registry import find

from .run_config import of_run
from .spelling import mistaken_for, nearest, overrides_nothing
from .views import evaluate_boxes_alone, model_that_merges, views_of
from .work_dir import Start

LIBRARIES = ('mmdet', 'mmseg', 'mmpretrain')
# Keys that are read: arguments of mmengine's runner, other keys that it reads from the config, and keys that the tools
# of the libraries read.
READ = {*inspect.signature(Runner.__init__).parameters, 'runner_type', 'custom_imports', 'compile', 'optimizer',
        'activation_checkpointing', 'efficient_conv_bn_eval', 'find_unused_parameters', 'model_wrapper_cfg',
        'tta_model', 'tta_pipeline'} - {'self', 'cfg'}
LOADERS = tuple(f'{split}_dataloader' for split in SPLITS)
# Keys whose value must be a dict.
DICTS = ('model', 'train_cfg', 'val_cfg', 'test_cfg', 'optim_wrapper', 'default_hooks', 'env_cfg', *LOADERS)
# Top-level keys of mmdet 2 and mmseg 0, with the keys that replaced them.
OLD_KEYS = dict(data='train_dataloader, val_dataloader and test_dataloader', total_epochs='train_cfg.max_epochs',
                lr_config='param_scheduler', checkpoint_config='default_hooks.checkpoint', evaluation='val_evaluator',
                optimizer_config='optim_wrapper')
# Types of mmengine and mmdet, by library and name, with those that replace them. They take the same arguments.
REPLACED = {
    'mmengine.CheckpointHook': 'openmmlab_tools.DurableCheckpointHook',
    'mmengine.EpochBasedTrainLoop': 'openmmlab_tools.CheckedEpochBasedTrainLoop',
    'mmengine.IterBasedTrainLoop': 'openmmlab_tools.CheckedIterBasedTrainLoop',
    'mmengine.ValLoop': 'openmmlab_tools.CheckedValLoop',
    'mmengine.TestLoop': 'openmmlab_tools.CheckedTestLoop',
    'mmengine.DefaultOptimWrapperConstructor': 'openmmlab_tools.MergedOptimWrapperConstructor',
    'mmdet.CocoMetric': 'openmmlab_tools.CocoMetric'}
# The hooks that each run gets, by their keys in `default_hooks`.
ADDED_HOOKS = dict(exact_resume='openmmlab_tools.ExactResumeHook', non_finite_loss='openmmlab_tools.NonFiniteLossHook',
                   portable_log='openmmlab_tools.PortableLogHook', same_start='openmmlab_tools.SameStartHook',
                   save_on_signal='openmmlab_tools.SaveOnSignalHook', report='openmmlab_tools.ReportHook',
                   scale='openmmlab_tools.ScaleHook')


# The lists of steps.

def for_reading(cfg: Config, options: Mapping[str, Any], work_dir: str | None, launcher: str) -> None:
    """Checks the config of a file after `options` have been merged, and sets its work dir and launcher."""
    check_config(cfg)
    check_library(cfg)
    check_options(cfg, options)
    check_names(cfg)
    cfg.work_dir = work_dir or cfg.get('work_dir') or f'work_dirs/{Path(cfg.filename).stem}'
    cfg.launcher = launcher


def check_config(cfg: Config) -> None:
    """Raises a UserError for old keys, parts that cannot be read, and an order of channels that bands do not have.

    This is for any config, also of a model that is not trained here.
    """
    check_old_keys(cfg)
    check_parts(cfg)
    check_order_of_channels(cfg)


def for_training(cfg: Config, amp: bool | str | None, resume: str | None) -> Start:
    """Sets what `train` is asked for, and checks what needs no other process. Returns from what it starts."""
    if amp:
        mix_precision(cfg.optim_wrapper, amp)
    check_precision(cfg.optim_wrapper, 'leave out --amp.' if amp else 'train with optim_wrapper.type=OptimWrapper.')
    if cfg.get('resume'):
        resume = resume or cfg.get('load_from') or 'auto'
    return Start(resume, cfg.get('load_from'))


def at_start(cfg: Config, resumed: Checkpoint | None, auto_scale_lr: bool) -> str:
    """Sets the checkpoint to resume and the learning rate, when all processes are there.

    Returns a sentence about the learning rate; '' if it comes unchanged from the config or the checkpoint.
    """
    cfg.resume = resumed is not None
    if resumed:
        resume_from(cfg, resumed)
    scaled = scale_rate(cfg) if auto_scale_lr or (cfg.get('auto_scale_lr') or {}).get('enable') else ''
    check_pretrained(cfg.get('model'))
    return '' if resumed else scaled


def for_test(cfg: Config, checkpoint: str, work_dir: Path, launcher: str, tta: bool, out: str | Path | None,
             report: Mapping[str, Any]) -> Config:
    """Returns a copy of a config that tests a checkpoint, in a work dir of its own. `report` are arguments of
    `ReportHook`; None for none.
    """
    cfg = copy.deepcopy(cfg)
    cfg.update(load_from=checkpoint, resume=False, work_dir=str(work_dir), launcher=launcher)
    if tta:
        make_views(cfg)
    if out:
        keep_predictions(cfg, Path(out))
    ask_for_report(cfg, {key: value for key, value in report.items() if value is not None})
    return cfg


def prepare(cfg: Config) -> Config:
    """Returns a copy of a config that contains this project's hooks, loops and samplers, for mmengine's own runner.

    - `default_hooks` contains the hooks in `ADDED_HOOKS`. The config's own settings of them are kept; None disables a
      hook.
    - Classes of mmengine and mmdet are replaced by the classes in `REPLACED`, which have the same arguments.
    - `SeededBatchSampler` wraps the batch sampler of training.
    - The workers of data loaders end with their process, unless the config sets a `worker_init_fn`.
    - `randomness.seed` is drawn, if the config does not set it and all processes can agree on it.
    - Several processes can train on a CPU.
    - Copies of the config contain no secrets and no templates; see `RunConfig`.

    A config that is already prepared is returned unchanged. An unknown optimizer raises a UserError.
    """
    cfg = of_run(copy.deepcopy(cfg))
    check_optimizer(cfg.get('default_scope'), (cfg.get('optim_wrapper') or {}).get('optimizer') or {})
    write_defaults(cfg)
    replace_types(cfg)
    add_hooks(cfg)
    end_workers_with_parent([cfg.get(name) for name in LOADERS])
    seed_batches(cfg.get('train_dataloader'), endless='max_iters' in (cfg.get('train_cfg') or {}))
    draw_seed(cfg)
    train_on_cpus(cfg)
    return cfg


# Steps of `for_reading`.

def check_old_keys(cfg: Config) -> None:
    # Some of mmpretrain's own configs still have old keys beside the new ones.
    is_mixed = 'train_dataloader' in cfg and cfg.get('default_scope') == 'mmpretrain'
    for key, new in OLD_KEYS.items():
        if key in cfg and not is_mixed:
            raise UserError(f'config {cfg.filename} has {key}, a key of mmdet 2 and mmseg 0 that mmdet 3 and mmseg 1 '
                            f'ignore: write {new} instead, and read their migration guides.')


def check_parts(cfg: Config) -> None:
    for key in DICTS:
        if cfg.get(key) is not None and not isinstance(cfg[key], dict):
            raise UserError(f'{key} of config {cfg.filename} is {cfg[key]!r}, but must be a dict: correct it.')
        if key in LOADERS and cfg.get(key) and 'dataset' not in cfg[key]:
            raise UserError(f'{key} of config {cfg.filename} has no dataset, but {", ".join(cfg[key])}: add it.')


def check_order_of_channels(cfg: Config) -> None:
    preprocessor = (cfg.get('model') or {}).get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    if preprocessor.get('bgr_to_rgb') and bands_loader([cfg.get(name) for name in LOADERS]):
        raise UserError('data_preprocessor.bgr_to_rgb is True, but LoadBandsFromFile loads no BGR: set it False.')


def check_library(cfg: Config) -> None:
    """Raises a UserError unless the config names its library, and an ImportError if it is not installed."""
    scope = cfg.get('default_scope')
    if scope not in LIBRARIES:
        raise UserError(f'default_scope of config {cfg.filename} is {scope!r}, but must be the name of its library: '
                        f'set it to {" or ".join(map(repr, LIBRARIES))}.')
    require(scope)


def check_options(cfg: Config, options: Mapping[str, Any]) -> None:
    """Raises a UserError for options that nothing reads, such as a variable of the file, which has used it already."""
    paths = [(*path, key) for path, part in walk(cfg.to_dict()) for key in part]
    keys = ['.'.join(map(str, path)) for path in paths if path[0] in READ and all(isinstance(key, str) for key in path)]
    for name in (option.split('.')[0] for option in options):
        if name not in READ:
            near = nearest(name, keys)
            raise UserError(f'--cfg-options {name} is not used: '
                            + (f'did you mean {near}.' if near else 'remove it, or correct its name.'))


def check_names(cfg: Config) -> None:
    """Raises a UserError for keys at the top level that are misspelt: one letter away from a key.

    They are refused if the config has no such key, or if they are a mistake in a file that inherits it.
    """
    for name in sorted(set(cfg) - READ):
        key = mistaken_for(name, READ)
        if key and (key not in cfg or overrides_nothing(name, Path(cfg.filename).read_text('utf-8'))):
            raise UserError(f'{name} of config {cfg.filename} is not used: did you mean {key}.')


# Steps of `for_training` and `at_start`.

def mix_precision(wrapper: dict[str, Any], amp: bool | str) -> None:
    """Sets mixed precision: 'float16' or 'bfloat16', or True for the type of the config, or else float16."""
    wrapper.update(type='AmpOptimWrapper', loss_scale='dynamic', dtype=wrapper.get('dtype') if amp is True else amp)


def check_precision(wrapper: Mapping[str, Any], instead: str) -> None:
    """Raises a UserError unless one optimizer trains the model, in mixed precision only on a GPU."""
    if 'optimizer' not in wrapper:
        raise UserError('optim_wrapper of the config has no optimizer: set optim_wrapper.optimizer to a single '
                        'optimizer for all parts of the model.')
    if wrapper.get('type') == 'AmpOptimWrapper' and get_device() == 'cpu':
        raise UserError(f'Mixed precision needs a GPU, but torch finds none: {instead}')


def resume_from(cfg: Config, checkpoint: Checkpoint) -> None:
    """Sets the checkpoint, its groups of parameters and, if the config has none, its seed."""
    cfg.load_from = checkpoint.path
    keep_groups(cfg.optim_wrapper, checkpoint.content['optimizer']['param_groups'])
    randomness = cfg.get('randomness') or {}
    if randomness.get('seed') is None:
        # mmengine also restores the seed, but too late for the order of the data.
        cfg.randomness = dict(randomness, seed=checkpoint.meta.get('seed'))


def keep_groups(wrapper: dict[str, Any], groups: Sequence[Mapping[str, Any]]) -> None:
    """Sets the constructor that builds the groups of parameters of a checkpoint's optimizer."""
    # Plain mmengine writes a group for each parameter.
    if len(groups) > 1 and all(len(group['params']) == 1 for group in groups) and (
            wrapper.get('constructor') in (None, 'DefaultOptimWrapperConstructor')):
        wrapper['constructor'] = 'openmmlab_tools.UnmergedOptimWrapperConstructor'


def scale_rate(cfg: Config) -> str:
    """Scales the learning rate to the images of an update, in place, where mmengine would not count accumulated ones,
    nor scale the rate that factors of parameters multiply. The config then is for so many images, and not scaled again.
    Returns a sentence; '' if the rate stays.
    """
    wrapper, base = cfg.optim_wrapper, (cfg.get('auto_scale_lr') or {}).get('base_batch_size')
    rate = wrapper.get('optimizer', {}).get('lr')
    if not all(isinstance(value, int | float) and value > 0 for value in (base, rate)):
        raise UserError('--auto-scale-lr needs auto_scale_lr.base_batch_size and optim_wrapper.optimizer.lr, which are '
                        f'{base!r} and {rate!r}: set them to a batch size and the learning rate for it.')
    factors = cfg.train_dataloader.get('batch_size', 1), get_world_size(), wrapper.get('accumulative_counts', 1)
    images = math.prod(factors)
    wrapper.optimizer.lr = rate * images / base
    cfg.auto_scale_lr = dict(enable=False, base_batch_size=images)
    return '' if images == base else (
        'The learning rate is scaled from {:.4g} to {:.4g}, because it is for {} images, but an update uses {} images '
        '(batch size {} x {} processes x {} accumulated batches).'.format(
            rate, wrapper.optimizer.lr, base, images, *factors))


def check_pretrained(model: Mapping[str, Any] | None) -> None:
    """Raises a UserError for a local file in an `init_cfg` that is no checkpoint with good weights."""
    for _, part in walk(model):
        if str(part.get('type')).endswith('Pretrained') and '://' not in (path := str(part.get('checkpoint'))):
            read_weights(path)


# Steps of `for_test`.

def make_views(cfg: Config) -> None:
    """Sets `tta_pipeline` and `tta_model` in a config, and uses the pipeline for the test data.

    If the config has none, they are the defaults of its library, with views by flips and sizes. mmdet cannot merge
    masks, so without an own `tta_model` only boxes are evaluated.
    """
    given = cfg.get('tta_pipeline')
    datasets = [dataset for _, dataset in unwrap(cfg.test_dataloader.dataset, '')]
    for dataset in datasets:
        dataset['pipeline'] = copy.deepcopy(given) if given else views_of(dataset.get('pipeline') or [])
    cfg.tta_pipeline = given or copy.deepcopy(datasets[0]['pipeline'])
    if not cfg.get('tta_model'):
        cfg.tta_model = model_that_merges(cfg.default_scope, cfg.model.get('test_cfg') or {})
        if cfg.default_scope != 'mmseg':
            evaluate_boxes_alone(cfg.test_evaluator)


def keep_predictions(cfg: Config, folder: Path) -> None:
    """Makes COCO's metric write its predictions to a folder. For segmentors, a hook writes the label maps."""
    metrics = [metric for metric in dicts(cfg.test_evaluator) if str(metric.get('type')).endswith('CocoMetric')]
    if not metrics and cfg.get('default_scope') != 'mmseg':
        raise UserError(f"--out saves boxes with COCO's metric, and label maps, but config {cfg.filename} has neither: "
                        'leave --out out.')
    for metric in metrics:
        metric['outfile_prefix'] = str(folder / 'predictions')


def ask_for_report(cfg: Config, options: Mapping[str, Any]) -> None:
    """Gives options to the `ReportHook` of a config, which is added if they are asked for, but the config has none."""
    if not options:
        return
    hooks = [hook for hook in hooks_of(cfg) if str(hook.get('type')).rpartition('.')[2] == 'ReportHook']
    if not hooks:
        cfg.default_hooks = {**(cfg.get('default_hooks') or {}), 'report': dict(type='openmmlab_tools.ReportHook')}
        hooks = [cfg.default_hooks.report]
    for hook in hooks:
        hook.update(options)


# Steps of `prepare`.

def check_optimizer(scope: str | None, optimizer: Mapping[str, Any]) -> None:
    name = optimizer.get('type')
    if isinstance(name, str) and kind_of(scope, OPTIMIZERS, optimizer) is None:
        raise UserError(f'optim_wrapper.optimizer.type is {name}, which is not a registered optimizer'
                        f'{did_you_mean(name, OPTIMIZERS.module_dict)}.')


def kind_of(scope: str | None, registry: Registry, part: Mapping[str, Any], key: str = 'type') -> Any:
    """Returns the class that a part of a config with a default scope names, or None."""
    return find(registry, part.get(key), part.get('_scope_', scope))


def write_defaults(cfg: Config) -> None:
    """Writes the types that mmengine uses where a config names none. Its visualizer has no name, because those with a
    name are shared in a process, with their output folder.
    """
    # mmengine itself would add this hook.
    cfg.default_hooks = ConfigDict({
        'checkpoint': dict(type='CheckpointHook', interval=1), **(cfg.get('default_hooks') or {})})
    train_cfg, wrapper = cfg.get('train_cfg') or {}, cfg.get('optim_wrapper') or {}
    if 'by_epoch' in train_cfg and 'type' not in train_cfg:
        train_cfg['type'] = 'EpochBasedTrainLoop' if train_cfg.pop('by_epoch') else 'IterBasedTrainLoop'
    for name, kind in (('val_cfg', 'ValLoop'), ('test_cfg', 'TestLoop')):
        if isinstance(cfg.get(name), dict):
            cfg[name].setdefault('type', kind)
    if (wrapper.get('optimizer') or {}).get('type'):
        wrapper['constructor'] = wrapper.get('constructor') or 'DefaultOptimWrapperConstructor'
    if cfg.get('visualizer'):
        cfg.visualizer.pop('name', None)


def typed_parts(cfg: Config) -> Iterator[tuple[Registry, dict[str, Any], str]]:
    """Yields hooks, loops, metrics and the wrapper of the optimizer, with their registry and the key of their type."""
    for hook in hooks_of(cfg):
        yield HOOKS, hook, 'type'
    for name in ('train_cfg', 'val_cfg', 'test_cfg'):
        yield from ((LOOPS, loop, 'type') for loop in dicts(cfg.get(name)))
    for name in ('val_evaluator', 'test_evaluator'):
        yield from ((METRICS, metric, 'type') for metric in dicts(cfg.get(name)))
    yield from ((OPTIM_WRAPPER_CONSTRUCTORS, wrapper, 'constructor') for wrapper in dicts(cfg.get('optim_wrapper')))


def replace_types(cfg: Config) -> None:
    for registry, part, key in typed_parts(cfg):
        kind = kind_of(cfg.get('default_scope'), registry, part, key)
        library = str(getattr(kind, '__module__', '')).partition('.')[0]
        if ours := REPLACED.get(f'{library}.{getattr(kind, "__name__", "")}'):
            part[key] = ours


def hooks_of(cfg: Config) -> list[dict[str, Any]]:
    return dicts([*(cfg.get('default_hooks') or {}).values(), *(cfg.get('custom_hooks') or ())])


def add_hooks(cfg: Config) -> None:
    given = [kind_of(cfg.get('default_scope'), HOOKS, hook) for hook in hooks_of(cfg)]
    for name, kind in ADDED_HOOKS.items():
        if name in cfg.default_hooks and cfg.default_hooks[name] is None:
            cfg.default_hooks[name] = dict(type='openmmlab_tools.NoHook')
        elif name not in cfg.default_hooks and HOOKS.get(kind) not in given:
            cfg.default_hooks[name] = dict(type=kind)


def end_workers_with_parent(loaders: Sequence[Any]) -> None:
    for loader in dicts(loaders):
        # mmengine passes `disable_subprocess_warning` to its own function only.
        if not {'worker_init_fn', 'disable_subprocess_warning'} & {*loader}:
            loader['worker_init_fn'] = dict(type='openmmlab_tools.end_worker_with_parent')


def seed_batches(loaders: Any, endless: bool) -> None:
    for loader in dicts(loaders):
        inner = loader.get('batch_sampler') or dict(
            type='torch.utils.data.BatchSampler', drop_last=loader.pop('drop_last', False))
        if inner.get('type') != 'openmmlab_tools.SeededBatchSampler':
            loader['batch_sampler'] = dict(
                type='openmmlab_tools.SeededBatchSampler', batch_sampler=inner, endless=endless)
        loader.setdefault('batch_size', 1)  # torch's default; mmengine requires it if there is a batch sampler


def draw_seed(cfg: Config) -> None:
    randomness = cfg.get('randomness') or {}
    if randomness.get('seed') is None and (cfg.get('launcher', 'none') == 'none' or is_distributed()):
        cfg.randomness = dict(randomness, seed=sync_random_seed())


def train_on_cpus(cfg: Config) -> None:
    """Sets the wrapper of a model for several processes without a GPU; mmengine's would get the number of a GPU."""
    if cfg.get('launcher', 'none') != 'none' and get_device() == 'cpu' and cfg.get('model_wrapper_cfg') is None:
        cfg.model_wrapper_cfg = dict(
            type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False))
