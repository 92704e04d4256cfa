"""The text of a config that trains on a folder of data."""
from pathlib import Path

from openmmlab_runs.config_text import assignments, comment, to_source
from openmmlab_runs.data.converted import is_written, written_file
from openmmlab_runs.data.fitting import Fit
from openmmlab_runs.data.splits import Data

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
    dict(type='LoadImageFromFile'),
    {load},
{train_transforms}
    dict(type='{pack}'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    {test_resize},
    {load},
    dict(type='{pack}'),
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
    checkpoint=dict(by_epoch=False, interval=val_interval, max_keep_ckpts=2, save_best={metric!r}))
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

TEST_AS_VAL = '''test_dataloader = val_dataloader
test_evaluator = val_evaluator'''
WARM_UP = 2  # with one iteration, the rate would never leave its start


def config_text(lines: list[str], base: str, data: Data, fit: Fit, task: str, iters: int, batch: int, annotations: Path,
                changes: dict, load_from: str | None, drop_empty: bool) -> str:
    """Returns the text of a config; for arguments that are not described here see `new_config`.

    Args:
        lines: Sentences for the comment at the top.
        base: The value of `_base_`.
        data: The data.
        fit: The sizes of images.
        annotations: The folder of annotations that are written.
        changes: What differs from the base, by top-level key.
        load_from: A checkpoint of the whole model, or None.
    """
    metainfo = dict(classes=tuple(data.classes), **(dict(palette=data.palette) if data.palette else {}))
    load = ("dict(type='LoadAnnotations')" if task == 'semantic' else
            f"dict(type='LoadAnnotations', with_bbox=True{', with_mask=True' * (task == 'instances')})")
    warm_up = max(WARM_UP, min(500, iters // 8))
    keeps = fit.crop and task != 'semantic'
    sizes = [*([] if keeps else [f'scale = {fit.scale}  # width and height']),
             *([f'crop_size = {fit.crop, fit.crop}{"  # images keep their sizes" * bool(keeps)}'] if fit.crop else [])]
    return CONFIG.format(
        comment=comment(lines), base=to_source(base), root=to_source(f'{data.root}/'),
        metainfo=assignments(dict(metainfo=metainfo)), sizes='\n'.join(sizes), iters=iters, batch=batch, load=load,
        train_transforms=_augmentation(task, bool(fit.crop)),
        pack='PackSegInputs' if task == 'semantic' else 'PackDetInputs',
        test_resize=f"dict(type='Resize', {'scale_factor=1.' if keeps else 'scale=scale'}, keep_ratio=True)",
        train=_dataset('train', data, annotations, task, drop_empty),
        evaluation=_evaluation('val', data, annotations, task),
        test=_evaluation('test', data, annotations, task) if 'test' in data.splits else TEST_AS_VAL,
        model=assignments(changes), warm_up=warm_up, end='max_iters' if iters > warm_up else warm_up + 1,
        interval=max(min(iters, 100), iters // 4), log_interval=max(1, min(50, iters // 20)), metric=METRICS[task],
        load_from=to_source(load_from))


def _augmentation(task: str, has_crops: bool) -> str:
    if task == 'semantic':
        crop = 'crop_size' if has_crops else 'scale[::-1]'
        return ("    dict(type='RandomResize', scale=scale, ratio_range=(0.5, 2.0), keep_ratio=True),\n"
                f"    dict(type='RandomCrop', crop_size={crop}, cat_max_ratio=0.75),\n"
                "    dict(type='RandomFlip', prob=0.5),\n    dict(type='PhotoMetricDistortion'),")
    first = "type='RandomCrop', crop_size=crop_size" if has_crops else "type='Resize', scale=scale, keep_ratio=True"
    return f"    dict({first}),\n    dict(type='RandomFlip', prob=0.5),"


def _inside(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _ann_file(split: str, data: Data, annotations: Path) -> str:
    part = data.splits[split]
    if is_written(part):
        return str(written_file(annotations, split, data.is_semantic).resolve())
    return '' if data.is_semantic or part.labels is None else _inside(part.labels, data.root)


def _dataset(split: str, data: Data, annotations: Path, task: str, drop_empty: bool = False) -> str:
    part, is_train = data.splits[split], split == 'train'
    folder = _inside(part.images, data.root)
    prefix: dict[str, str]
    if task == 'semantic':
        labels = str((annotations / split).resolve()) if part.labels is None else _inside(part.labels, data.root)
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
