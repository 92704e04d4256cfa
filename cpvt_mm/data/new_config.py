"""Writes a config that trains on a folder of data."""
import copy
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mmengine.config import Config

from cpvt_mm.config_text import assignments, comment, to_source
from cpvt_mm.errors import UserError
from cpvt_mm.files import check_free, write_text
from cpvt_mm.swap import read_config, swap_backbone
from cpvt_mm.swap.writing import bases_of, check_new, to_delta
from cpvt_mm.weights.released import RELEASED, SCHEME

from .fitting import describe, fit_images, fit_model
from .other_formats import LABEL_MAPS
from .own_data import find_data
from .plans import task_of
from .splits import Data, Split

CONFIGS = Path(__file__).parents[1] / '.mim/configs'
# The config of each task, for the other archs and for nano.
BASES = dict(
    boxes=('boxes/faster-rcnn_pyramid-cpvt-s_fpn_boxes.py', 'boxes/faster-rcnn_pyramid-cpvt-nano_fpn_boxes.py'),
    instances=('nuclei/mask-rcnn_pyramid-cpvt-s_fpn_nuclei.py', 'nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'),
    semantic=('camvid/upernet_pyramid-cpvt-s_camvid-360x480.py', 'camvid/upernet_pyramid-cpvt-nano_camvid-192x256.py'))
# The longest side of images in training, in pixels: on a GPU, and on a CPU.
LIMITS = dict(boxes=(1333, 480), instances=(1333, 480), semantic=(1024, 320))
METRICS = dict(boxes='coco/bbox_mAP', instances='coco/segm_mAP', semantic='mIoU')
Swap = Callable[[Config], Config]

CONFIG = '''{comment}
_base_ = {base}
data_root = {root}
{metainfo}{scale}
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
    dict(type='CosineAnnealingLR', by_epoch=False, begin=warm_up, end=max_iters, T_max=max_iters - warm_up,
         eta_min_ratio=0.01),
]
default_hooks = dict(
    logger=dict(interval={log_interval}, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=val_interval, max_keep_ckpts=2, save_best={metric!r}))
log_processor = dict(by_epoch=False)
load_from = None  # a checkpoint of a whole model to start from
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


def new_config(source: str | Path, out: str | Path, task: str | None = None, arch: str | None = None,
               scale: tuple[int, int] | None = None, iters: int | None = None, batch: int | None = None,
               val: str = '0.2', seed: int = 0, base: str | None = None, swap: Swap | None = None) -> list[str]:
    """Writes a config that trains on the data of a folder.

    Annotations that are not in COCO's layout, and splits that are drawn here, are written to `<out>_annotations`.

    Args:
        source: See `find_data`.
        out: The `.py` file to write. It must not exist.
        task: 'boxes', 'instances' or 'semantic'. Defaults to None: the most that the annotations allow.
        arch: The `arch` of `PyramidCPVT`. Defaults to None: 'nano', or the backbone of `base`.
        scale: Width and height of images in training. Defaults to None: measured.
        iters: Number of iterations. Defaults to None: 400 for nano, else 8000.
        batch: Batch size. Defaults to None: 4 for nano, else 8.
        val: See `find_data`.
        seed: See `find_data`.
        base: A config to take the model from, a path or a name such as 'mmdet::retinanet/...'. Defaults to None:
            one of this project.
        swap: Changes the model of `base`, such as a partial of `swap_backbone`. Defaults to None: by `arch`.

    Returns:
        Sentences that describe the data.

    Raises:
        UserError: If the data cannot be used for the task, the model is for another task, a number is not positive, or
            a file exists already.
    """
    for option, number, least in (('iters', iters, 2), ('batch', batch, 1), ('scale', min(scale or (1,)), 1)):
        if number is not None and number < least:
            raise UserError(f'{option} is {number}, but must be at least {least}.')
    out = Path(out)
    annotations = out.with_name(f'{out.stem}_annotations')
    check_new(out)
    check_free(annotations)
    model = read_config(base) if base else None
    of_model = task_of(model) if model else None
    wanted = task or of_model
    data = find_data(Path(source), None if wanted is None else wanted == 'semantic', val, seed)
    task = _task(data, task, of_model)
    is_nano = arch == 'nano' or (arch is None and base is None)
    iters, batch = iters or (400 if is_nano else 8000), batch or (4 if is_nano else 8)
    name = base or str(CONFIGS / BASES[task][is_nano])
    old = model or read_config(name)
    if not swap and arch and name != str(CONFIGS / BASES[task][True]):
        released = f'pyramid-cpvt-{arch}'
        swap = partial(swap_backbone, arch=arch, checkpoint=SCHEME + released if released in RELEASED else None,
                       schedule=bool(base))
    new = swap(old) if swap else copy.deepcopy(old)
    fitting, crop, boxes = fit_images(data, LIMITS[task][is_nano], scale)
    fit_model(new.model, data, boxes, fitting[::-1])
    lines = describe(data, boxes)
    changes = {key: delta for key in ('model', 'optim_wrapper') if (delta := to_delta(old[key], new[key]))}
    metainfo = dict(classes=tuple(data.classes), **(dict(palette=data.palette) if data.palette else {}))
    load = ("dict(type='LoadAnnotations')" if task == 'semantic' else
            f"dict(type='LoadAnnotations', with_bbox=True{', with_mask=True' * (task == 'instances')})")
    warm_up = max(1, min(500, iters // 8))
    text = CONFIG.format(
        comment=comment(lines), base=to_source(bases_of(name, out, new.default_scope)[0]),
        root=to_source(f'{data.root}/'), metainfo=assignments(dict(metainfo=metainfo)),
        scale=f'crop_size = {crop, crop}  # images keep their sizes' if crop else
        f'scale = {fitting}  # width and height', iters=iters, batch=batch, load=load,
        train_transforms=_augmentation(task, crop, fitting),
        pack='PackSegInputs' if task == 'semantic' else 'PackDetInputs',
        test_resize=f"dict(type='Resize', {'scale_factor=1.' if crop else 'scale=scale'}, keep_ratio=True)",
        train=_dataset('train', data, annotations, task),
        evaluation=_evaluation('val', data, annotations, task), test=_evaluation(
            'test', data, annotations, task) if 'test' in data.splits else TEST_AS_VAL,
        model=assignments(changes), warm_up=warm_up, interval=max(min(iters, 100), iters // 4),
        log_interval=max(1, min(50, iters // 20)), metric=METRICS[task])
    for split, part in data.splits.items():
        if _is_written(part):
            annotations.mkdir(exist_ok=True)
            _write_annotations(annotations / split, part, data)
    write_text(out, text)
    return lines


def _task(data: Data, task: str | None, of_model: str | None) -> str:
    """Returns the task: the given one, or that of the model, or the most that the annotations allow."""
    has_masks = all(annotation.get('segmentation') for split in data.splits.values()
                    for annotation in split.coco['annotations'])
    possible = ['semantic'] if data.form == LABEL_MAPS else ['instances', 'boxes'] if has_masks else ['boxes']
    task = task or of_model or possible[0]
    if task not in possible:
        raise UserError(f'{data.root} has {data.form} for {" or ".join(possible)}, but the task is {task}: choose '
                        'another --task, or another model.')
    if of_model not in (None, task):
        raise UserError(f'the model is for {of_model}, but the task is {task}: choose another --task or model.')
    return task


def _augmentation(task: str, crop: int, scale: tuple[int, int]) -> str:
    if task == 'semantic':
        return ("    dict(type='RandomResize', scale=scale, ratio_range=(0.5, 2.0), keep_ratio=True),\n"
                "    dict(type='RandomCrop', crop_size=scale[::-1], cat_max_ratio=0.75),\n"
                "    dict(type='RandomFlip', prob=0.5),\n    dict(type='PhotoMetricDistortion'),")
    first = "type='RandomCrop', crop_size=crop_size" if crop else "type='Resize', scale=scale, keep_ratio=True"
    return f"    dict({first}),\n    dict(type='RandomFlip', prob=0.5),"


def _is_written(split: Split) -> bool:
    return split.labels is None or not split.is_whole


def _write_annotations(path: Path, split: Split, data: Data) -> None:
    if data.form == LABEL_MAPS:
        lines = [image['file_name'].removesuffix(data.suffixes[0]) for image in split.coco['images']]
        write_text(path.with_suffix('.txt'), '\n'.join(lines) + '\n')
    else:
        # mmdet numbers classes in the order of the file's categories.
        names = {category['id']: category['name'] for category in split.coco['categories']}
        ids = {name: index for index, name in enumerate(data.classes, start=1)}
        write_text(path.with_suffix('.json'), json.dumps(dict(
            images=split.coco['images'], categories=[dict(id=index, name=name) for name, index in ids.items()],
            annotations=[dict(one, category_id=ids[names[one['category_id']]]) for one in split.coco['annotations']
                         if one['category_id'] in names])))


def _inside(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _ann_file(split: str, data: Data, annotations: Path) -> str:
    part, suffix = data.splits[split], '.txt' if data.form == LABEL_MAPS else '.json'
    if _is_written(part):
        return str((annotations / split).with_suffix(suffix).resolve())
    return '' if data.form == LABEL_MAPS or part.labels is None else _inside(part.labels, data.root)


def _dataset(split: str, data: Data, annotations: Path, task: str) -> str:
    part, is_train = data.splits[split], split == 'train'
    folder = _inside(part.images, data.root)
    prefix: dict[str, str]
    if task == 'semantic':
        assert part.labels is not None
        kind, prefix = 'BaseSegDataset', dict(img_path=folder, seg_map_path=_inside(part.labels, data.root))
        image, label_map = map(to_source, data.suffixes)
        more = f'\n        img_suffix={image},\n        seg_map_suffix={label_map},'
    else:
        kind, prefix = 'CocoDataset', dict(img='' if folder == '.' else f'{folder}/')
        more = f"\n        {'filter_cfg=dict(filter_empty_gt=True)' if is_train else 'test_mode=True'},"
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
