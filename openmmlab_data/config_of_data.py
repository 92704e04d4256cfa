"""The text of a config that trains on a folder of data."""
from pathlib import Path

from mmengine.config import Config

from openmmlab_data.form.folder import inside
from openmmlab_data.form.splits import Data
from openmmlab_runs.config_text import assignments, comment, to_source
from openmmlab_runs.config_walk import dicts
from openmmlab_runs.errors import UserError

from .channels import Bands
from .converted import is_written, written_file
from .image_sizes import Fit

METRICS = dict(boxes='coco/bbox_mAP', instances='coco/segm_mAP', semantic='mIoU')
CONFIG = '''{comment}
_base_ = {base}
data_root = {root}
{metainfo}{sizes}
max_iters = {iters}
warm_up = {warm_up}
val_interval = {interval}  # also of checkpoints
batch_size = {batch}

train_pipeline = [
    {image},
    {load},
{train_transforms}
    {normalize}dict(type='{pack}'),
]
test_pipeline = [
    {image},
    {test_resize},
    {load},
    {normalize}dict(type='{pack}'),
]
train_dataloader = dict(
    _delete_=True,
    batch_size=batch_size,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict({train}))
{evaluation}
{test}
{model}train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=max_iters, val_interval=val_interval)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=warm_up),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=warm_up, end={end}, T_max={end} - warm_up,
         eta_min_ratio=0.01),
]
default_hooks = dict(
    logger=dict(interval={log_interval}, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=val_interval, max_keep_ckpts=2, save_best={metric!r}){hooks})
log_processor = dict(by_epoch=False)
load_from = {load_from}  # a checkpoint of a whole model to start from
'''
EVALUATION = '''{name}_dataloader = dict(
    _delete_=True,
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict({dataset}))
{name}_evaluator = dict(
    _delete_=True,
    {evaluator})'''

NORMALIZE = '''dict(type='Normalize', mean=mean, std=std, to_rgb=False),
    '''
TEST_AS_VAL = '''test_dataloader = val_dataloader
test_evaluator = val_evaluator'''
WARM_UP = 2  # with one iteration, the rate would never leave its start
# What must be gained for an improvement, for metrics that are shares and for those in percent.
LEAST_GAINS = {'mIoU': 0.1}
LEAST_GAIN = 0.001


def config_text(lines: list[str], base: str, data: Data, fit: Fit, task: str, iters: int, batch: int, annotations: Path,
                changes: dict, load_from: str | None, drop_empty: bool, bands: Bands | None, hooks: str,
                validations: int) -> str:
    """Returns the text of a config that begins with `lines` and inherits from `base`; see `new_config`.

    `annotations` is the folder of those that are written, `changes` what differs from the base, `bands` those of images
    that mmcv's loader does not read whole, `hooks` the source of more hooks.
    """
    metainfo = dict(classes=tuple(data.classes), **(dict(palette=data.palette) if data.palette else {}))
    load = ("dict(type='LoadAnnotations')" if task == 'semantic' else
            f"dict(type='LoadAnnotations', with_bbox=True{', with_mask=True' * (task == 'instances')})")
    warm_up = max(WARM_UP, min(500, iters // 8))
    keeps = fit.crop and task != 'semantic'
    sizes = [*([] if keeps else [f'scale = {fit.scale}  # width and height']),
             *([f'mean = {bands.mean}  # of each channel', f'std = {bands.std}'] if bands else []),
             *([f'crop_size = {fit.crop, fit.crop}{"  # images keep their sizes" * bool(keeps)}'] if fit.crop else [])]
    return CONFIG.format(
        comment=comment(lines), base=to_source(base), root=to_source(f'{data.root}/'),
        metainfo=assignments(dict(metainfo=metainfo)), sizes='\n'.join(sizes), iters=iters, batch=batch, load=load,
        image=_loader(bands), normalize=NORMALIZE if bands else '',
        train_transforms=_augmentation(task, bool(fit.crop), bool(bands)),
        pack='PackSegInputs' if task == 'semantic' else 'PackDetInputs',
        test_resize=f"dict(type='Resize', {'scale_factor=1.' if keeps else 'scale=scale'}, keep_ratio=True)",
        train=_dataset('train', data, annotations, task, drop_empty),
        evaluation=_evaluation('val', data, annotations, task),
        test=_evaluation('test', data, annotations, task) if 'test' in data.splits else TEST_AS_VAL,
        model=assignments(changes), warm_up=warm_up, end='max_iters' if iters > warm_up else warm_up + 1,
        interval=max(min(iters, 100), iters // validations), log_interval=max(1, min(50, iters // 20)),
        metric=METRICS[task], hooks=hooks, load_from=to_source(load_from))


def hook_options(base: Config, metric: str, early_stop: int | None, ema: bool) -> str:
    """Returns source for `default_hooks` of a config that inherits from `base`; '' if nothing is asked for.

    Args:
        base: The config to inherit from, which must not have such hooks already.
        metric: The metric that counts.
        early_stop: After how many validations without a better result training ends. None: never.
        ema: Whether to average the weights over about a twentieth of the iterations, `max_iters` of the config.

    Raises:
        UserError: If the base has such a hook.
    """
    named = dicts([*(base.get('custom_hooks') or ()), *(base.get('default_hooks') or {}).values()])
    for option, kind, is_asked in ('early_stop', 'EarlyStoppingHook', early_stop), ('ema', 'EMAHook', ema):
        if is_asked and any(str(hook.get('type')).rpartition('.')[2] == kind for hook in named):
            raise UserError(f'config {base.filename} has an {kind} already: leave {option} out, or change that one.')
    stop = (f",\n    early_stopping=dict(type='EarlyStoppingHook', monitor={metric!r}, patience={early_stop}, "
            f"rule='greater',\n                        min_delta={LEAST_GAINS.get(metric, LEAST_GAIN)})")
    average = ",\n    ema=dict(type='EMAHook', momentum=min(0.5, 20 / max_iters))"
    return stop * bool(early_stop) + average * ema


def _loader(bands: Bands | None) -> str:
    if bands is None:
        return "dict(type='LoadImageFromFile')"
    fill = ', fill=mean' if bands.has_empty else ''
    return f"dict(type='openmmlab_runs.LoadBandsFromFile', channels={bands.channels}{fill})"


def _augmentation(task: str, has_crops: bool, has_bands: bool) -> str:
    if task == 'semantic':
        crop = 'crop_size' if has_crops else 'scale[::-1]'
        return ("    dict(type='RandomResize', scale=scale, ratio_range=(0.5, 2.0), keep_ratio=True),\n"
                f"    dict(type='RandomCrop', crop_size={crop}, cat_max_ratio=0.75),\n"
                "    dict(type='RandomFlip', prob=0.5)," + (
                    '' if has_bands else "\n    dict(type='PhotoMetricDistortion'),"))  # it is for BGR of 8 bits
    first = "type='RandomCrop', crop_size=crop_size" if has_crops else "type='Resize', scale=scale, keep_ratio=True"
    return f"    dict({first}),\n    dict(type='RandomFlip', prob=0.5),"


def _ann_file(split: str, data: Data, annotations: Path) -> str:
    part = data.splits[split]
    if is_written(part):
        return str(written_file(annotations, split, data.is_semantic).resolve())
    return '' if data.is_semantic or part.labels is None else inside(part.labels, data.root)


def _dataset(split: str, data: Data, annotations: Path, task: str, drop_empty: bool = False) -> str:
    part, is_train = data.splits[split], split == 'train'
    folder = inside(part.images, data.root)
    prefix: dict[str, str]
    if task == 'semantic':
        labels = str((annotations / split).resolve()) if part.labels is None else inside(part.labels, data.root)
        kind, prefix = 'BaseSegDataset', dict(img_path=folder, seg_map_path=labels)
        image, label_map = map(to_source, data.suffixes)
        more = f'\n        img_suffix={image},\n        seg_map_suffix={label_map},'
    else:
        kind, prefix = 'CocoDataset', dict(img='' if folder == '.' else f'{folder}/')
        more = f"\n        {f'filter_cfg=dict(filter_empty_gt={drop_empty})' if is_train else 'test_mode=True'},"
    return (f"\n        type='{kind}',\n        data_root=data_root,\n        metainfo=metainfo,\n"
            f"        ann_file={to_source(_ann_file(split, data, annotations))},\n"
            f"        data_prefix={to_source(prefix)},{more}\n"
            f"        pipeline={'train' if is_train else 'test'}_pipeline")


def _evaluation(split: str, data: Data, annotations: Path, task: str) -> str:
    file = _ann_file(split, data, annotations)
    where = to_source(file) if Path(file).is_absolute() else f'data_root + {to_source(file)}'
    metric = "'bbox'" if task == 'boxes' else "['bbox', 'segm']"
    evaluator = ("type='IoUMetric', iou_metrics=['mIoU']" if task == 'semantic' else
                 f"type='CocoMetric', ann_file={where}, metric={metric}, classwise=True")
    return EVALUATION.format(name=split, dataset=_dataset(split, data, annotations, task), evaluator=evaluator)
