"""A config that trains on a folder of data, as a dict of its values."""
from typing import Any

from mmengine.config import Config

from openmmlab_tools.config_walk import dicts
from openmmlab_tools.errors import UserError
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.texts import counted

from .channels import Bands
from .config_options import TASKS, VALIDATIONS, WARM_UP, ConfigOptions, Task
from .image_sizes import Fit


class Code:
    """Python code that replaces a value in a config, such as the name of another value."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def config_of(task: str, iters: int, batch: int, asked: ConfigOptions, data: LabelledData,
              labels: dict[str, dict[str, Any]], fit: Fit, bands: Bands | None, most: int) -> dict[str, Any]:
    """Returns the values of a config, except for its model.

    Args:
        task: One of `TASKS`.
        iters: The number of iterations.
        batch: The batch size.
        asked: Further options.
        data: The images.
        labels: The arguments of the datasets, from `write_labels`.
        fit: The sizes of images.
        bands: The channels of images that mmcv's loader does not read whole. None: it does.
        most: How many boxes of an image the model predicts at most; mmdet's metric counts 100.
    """
    warm_up = max(WARM_UP[0], min(WARM_UP[1], iters // 8))
    end = Code('max_iters') if iters > warm_up else warm_up + 1
    metainfo = dict(classes=tuple(data.classes), **(dict(palette=data.palette) if data.palette else {}))
    return dict(
        data_root=f'{data.root}/', metainfo=metainfo, **_sizes(task, fit, bands), max_iters=iters, warm_up=warm_up,
        val_interval=max(min(iters, 100), iters // VALIDATIONS[bool(asked.early_stop)]), batch_size=batch,
        train_pipeline=_pipeline(task, bands, _augmentation(task, fit, bands), []),
        test_pipeline=_pipeline(task, bands, [], [_resize(task, fit)]),
        train_dataloader=_loader('train', labels, Code('batch_size'), dict(type='InfiniteSampler', shuffle=True), **(
            {} if data.is_semantic else dict(filter_cfg=dict(filter_empty_gt=asked.drop_empty)))),
        **_evaluation('val', task, labels, most), **_evaluation('test', task, labels, most),
        train_cfg=dict(_delete_=True, type='IterBasedTrainLoop', max_iters=Code('max_iters'),
                       val_interval=Code('val_interval')),
        param_scheduler=[
            dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=Code('warm_up')),
            dict(type='CosineAnnealingLR', by_epoch=False, begin=Code('warm_up'), end=end,
                 T_max=Code(f'{end} - warm_up'), eta_min_ratio=0.01)],
        default_hooks=_hooks(TASKS[task], iters, asked), log_processor=dict(by_epoch=False),
        # The learning rate of another config is for the batch size that this config names.
        **({} if asked.base else dict(auto_scale_lr=dict(enable=False, base_batch_size=Code('batch_size')))))


def about_early_stop(values: dict[str, Any], patience: int | None) -> list[str]:
    """Returns a sentence if the training in a config ends before it could stop early; `values` are from `config_of`."""
    if patience is None:
        return []
    # The first validation is always an improvement. A stop at the last one would change nothing.
    first, has_start = patience + 1, 'validate_first' in values['default_hooks']
    number = values['max_iters'] // values['val_interval'] + has_start
    if number > first:
        return []
    advice = (f'pass --iters {100 * (first + 1 - has_start)} or more' if first < VALIDATIONS[True] else
              f'pass a number below {VALIDATIONS[True] - 1}')
    return [f'--early-stop {patience} cannot end this training early: it has {counted(number, "validation")}, and '
            f'could stop at number {first} at the earliest. To change this, {advice}.']


def check_hooks(base: Config, asked: ConfigOptions) -> None:
    """Raises a UserError if a config to inherit from has a hook already that is asked for."""
    named = dicts([*(base.get('custom_hooks') or ()), *(base.get('default_hooks') or {}).values()])
    for option, kind, is_asked in (('early_stop', 'EarlyStoppingHook', asked.early_stop),
                                   ('ema', 'EMAHook', asked.ema)):
        if is_asked and any(str(hook.get('type')).rpartition('.')[2] == kind for hook in named):
            raise UserError(f'config {base.filename} already has an {kind}: leave {option} out, or change the {kind}.')


def _hooks(task: Task, iters: int, asked: ConfigOptions) -> dict[str, Any]:
    hooks: dict[str, Any] = dict(logger=dict(interval=max(1, min(50, iters // 20)), log_metric_by_epoch=False),
                 checkpoint=dict(by_epoch=False, interval=Code('val_interval'), max_keep_ckpts=2,
                                 save_best=task.metric))
    if asked.early_stop:
        hooks['early_stopping'] = dict(type='EarlyStoppingHook', monitor=task.metric, patience=asked.early_stop,
                                       rule='greater', min_delta=task.least_gain)
    if asked.ema:
        hooks['ema'] = dict(type='EMAHook', momentum=Code('min(0.5, 20 / max_iters)'))
    return hooks


def _keeps(task: str, fit: Fit) -> bool:
    """Returns whether images keep their sizes, of which training crops parts."""
    return bool(fit.crop) and task != 'semantic'


def _sizes(task: str, fit: Fit, bands: Bands | None) -> dict[str, Any]:
    return {**({} if _keeps(task, fit) else dict(scale=fit.scale)),  # width and height
            **(dict(mean=bands.mean, std=bands.std) if bands else {}),
            **(dict(crop_size=(fit.crop, fit.crop)) if fit.crop else {})}


def _pipeline(task: str, bands: Bands | None, after: list[dict[str, Any]], before: list[dict[str, Any]]
              ) -> list[dict[str, Any]]:
    """Returns a pipeline with transforms after annotations are loaded, and before."""
    load = dict(type='LoadImageFromFile') if bands is None else dict(
        type='openmmlab_tools.LoadBandsFromFile', channels=bands.channels,
        **(dict(fill=Code('mean')) if bands.has_empty else {}))
    normalize = [dict(type='Normalize', mean=Code('mean'), std=Code('std'), to_rgb=False)] if bands else []
    return [load, *before, TASKS[task].load, *after, *normalize, dict(type=TASKS[task].pack)]


def _augmentation(task: str, fit: Fit, bands: Bands | None) -> list[dict[str, Any]]:
    flip = dict(type='RandomFlip', prob=0.5)
    if task != 'semantic':
        resize = [] if fit.crop and fit.factor == 1 else [_resize(task, fit)]
        # Images without objects stay; others are drawn again if a crop has none of their objects.
        crop = [dict(type='RandomCrop', crop_size=Code('crop_size'), allow_negative_crop=True)] if fit.crop else []
        hides = fit.crop or task == 'instances'  # a mask can lose its last pixel when it shrinks
        keep = [dict(type='openmmlab_tools.KeepVisibleObjects')] if hides else []
        return [*resize, *crop, flip, *keep]
    return [dict(type='RandomResize', scale=Code('scale'), ratio_range=(0.5, 2.0), keep_ratio=True),
            dict(type='RandomCrop', crop_size=Code('crop_size' if fit.crop else 'scale[::-1]'), cat_max_ratio=0.75),
            flip, *([] if bands else [dict(type='PhotoMetricDistortion')])]  # it is for BGR of 8 bits


def _resize(task: str, fit: Fit) -> dict[str, Any]:
    return dict(type='Resize', keep_ratio=True, **(
        dict(scale_factor=fit.factor) if _keeps(task, fit) else dict(scale=Code('scale'))))


def _loader(split: str, labels: dict[str, dict[str, Any]], batch: Any, sampler: dict[str, Any], **more: Any
            ) -> dict[str, Any]:
    pipeline = Code('train_pipeline' if split == 'train' else 'test_pipeline')
    return dict(_delete_=True, batch_size=batch, num_workers=2, persistent_workers=True, sampler=sampler, dataset=dict(
        labels[split], data_root=Code('data_root'), metainfo=Code('metainfo'), pipeline=pipeline, **more))


def _evaluation(split: str, task: str, labels: dict[str, dict[str, Any]], most: int) -> dict[str, Any]:
    if split not in labels:
        return {f'{split}_{part}': Code(f'val_{part}') for part in ('dataloader', 'evaluator')}
    is_coco = task != 'semantic'
    loader = _loader(split, labels, 1, dict(type='DefaultSampler', shuffle=False),
                     **(dict(test_mode=True) if is_coco else {}))
    evaluator = dict(TASKS[task].evaluator, **(dict(ann_file=labels[split]['ann_file']) if is_coco else {}))
    if is_coco and most > 100:
        evaluator |= dict(type='openmmlab_tools.CocoMetric', proposal_nums=(1, 10, most))
    return {f'{split}_dataloader': loader, f'{split}_evaluator': dict(_delete_=True, **evaluator)}
