"""Writes a config that trains on a folder of data."""
import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from yapf.yapflib.yapf_api import FormatCode

from cpvt_mm.errors import UserError
from cpvt_mm.files import check_free, write_text
from cpvt_mm.swap import read_config, swap_backbone
from cpvt_mm.swap.channels import walk
from cpvt_mm.swap.writing import STYLE, bases_of, to_delta, to_source
from cpvt_mm.weights.released import RELEASED, SCHEME

from .own_data import Data, Split, find_data

CONFIGS = Path(__file__).parents[1] / '.mim/configs'
# The config of each task, for the other archs and for nano.
BASES = dict(
    boxes=('boxes/faster-rcnn_pyramid-cpvt-s_fpn_boxes.py', 'boxes/faster-rcnn_pyramid-cpvt-nano_fpn_boxes.py'),
    instances=('nuclei/mask-rcnn_pyramid-cpvt-s_fpn_nuclei.py', 'nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'),
    semantic=('camvid/upernet_pyramid-cpvt-s_camvid-360x480.py', 'camvid/upernet_pyramid-cpvt-nano_camvid-192x256.py'))
# The longest side of images in training, in pixels: on a GPU, and on a CPU.
LIMITS = dict(boxes=(1333, 480), instances=(1333, 480), semantic=(1024, 320))
METRICS = dict(boxes='coco/bbox_mAP', instances='coco/segm_mAP', semantic='mIoU')
SMALL = 16  # pixels; images are not scaled down if half of the objects would be smaller
VARIED = 1.5  # images whose sides differ by more keep their sizes, as those of a microscope
LEAST_CROP = 320  # pixels

CONFIG = '''{comment}
_base_ = {base!r}
data_root = {root!r}
metainfo = dict(classes={classes})
{scale}
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
{model}
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=max_iters, val_interval=val_interval)
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
{name}_evaluator = dict(_delete_=True, {evaluator})'''


def new_config(source: str | Path, out: str | Path, task: str | None = None, arch: str | None = None,
               scale: tuple[int, int] | None = None, iters: int | None = None, batch: int | None = None,
               val: str = '0.2', seed: int = 0, base: str | None = None) -> list[str]:
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

    Returns:
        Sentences that describe the data.

    Raises:
        UserError: If the data cannot be used for the task, or a file exists already.
    """
    out = Path(out)
    annotations = out.with_name(f'{out.stem}_annotations')
    if out.suffix != '.py':
        raise UserError(f'{out} is not a name for a config: use the suffix .py.')
    check_free(out)
    check_free(annotations)
    data = find_data(Path(source), None if task is None else task == 'semantic', val, seed)
    task = _task(data, task)
    is_nano = arch == 'nano' or (arch is None and base is None)
    iters, batch = iters or (400 if is_nano else 8000), batch or (4 if is_nano else 8)
    name = base or str(CONFIGS / BASES[task][is_nano])
    old = read_config(name)
    new = copy.deepcopy(old)
    if arch and name != str(CONFIGS / BASES[task][True]):
        released = f'pyramid-cpvt-{arch}'
        new = swap_backbone(old, arch, SCHEME + released if released in RELEASED else None, schedule=bool(base))
    sizes = np.array([(image['width'], image['height']) for image in data.splits['train'].coco['images']])
    limit = LIMITS[task][is_nano]
    longest = np.quantile(sizes.max(axis=1), (.1, .5, .9))
    fitting = scale or _scaled(np.quantile(sizes, .9, axis=0), limit)
    boxes, crop = _boxes(data, fitting), 0
    if not scale and len(boxes) and (longest[2] > VARIED * longest[0] or (
            longest[2] > max(fitting) and np.median(boxes[:, 0]) < SMALL)):
        boxes, crop = _boxes(data), min(limit, max(LEAST_CROP, int(longest[1])))
    lines = [f'{data.root} has {data.form}.', *_describe(data, sizes, boxes), *data.notes]
    _fit_model(new.model, data, boxes, fitting[::-1])
    changes = {key: delta for key in ('model', 'optim_wrapper') if (delta := to_delta(old[key], new[key]))}
    classes = to_source(tuple(data.classes)) + (f', palette={data.palette}' if data.palette else '')
    load = ("dict(type='LoadAnnotations')" if task == 'semantic' else
            f"dict(type='LoadAnnotations', with_bbox=True{', with_mask=True' * (task == 'instances')})")
    warm_up = min(500, iters // 8)
    text = CONFIG.format(
        comment='\n'.join(f'# {line}' for line in lines), base=bases_of(name, out, new.default_scope)[0],
        root=f'{data.root}/', classes=classes, scale=f'crop_size = {crop, crop}  # images keep their sizes' if crop else
        f'scale = {fitting}  # width and height', iters=iters, batch=batch, load=load,
        train_transforms=_augmentation(task, crop, fitting),
        pack='PackSegInputs' if task == 'semantic' else 'PackDetInputs',
        test_resize=f"dict(type='Resize', {'scale_factor=1.' if crop else 'scale=scale'}, keep_ratio=True)",
        train=_dataset('train', data, annotations, task),
        evaluation='\n'.join(_evaluation(split, data, annotations, task) for split in ('val', 'test')),
        model=FormatCode(''.join(f'{key} = {to_source(delta)}\n' for key, delta in changes.items()),
                         style_config=STYLE)[0], warm_up=warm_up, interval=max(min(iters, 100), iters // 4),
        log_interval=max(1, min(50, iters // 20)), metric=METRICS[task])
    for split, part in data.splits.items():
        if _is_written(part):
            annotations.mkdir(exist_ok=True)
            _write_annotations(annotations / split, part, data)
    write_text(out, text)
    return lines


def _task(data: Data, task: str | None) -> str:
    if data.form == 'label maps':
        return 'semantic'
    has_masks = all(annotation.get('segmentation') for split in data.splits.values()
                    for annotation in split.coco['annotations'])
    if task == 'instances' and not has_masks:
        raise UserError(f'{data.root} has objects without a mask, but the task is instances: take --task boxes.')
    return task or ('instances' if has_masks else 'boxes')


def _scaled(size: np.ndarray, limit: int) -> tuple[int, int]:
    width, height = np.ceil(size * min(1, limit / size.max())).astype(int).tolist()
    return width, height


def _boxes(data: Data, scale: tuple[int, int] | None = None) -> np.ndarray:
    """Returns size (root of the area, in pixels at the scale of training) and aspect (height / width) of each box."""
    coco = data.splits['train'].coco
    factors = {image['id']: min(max(scale) / max(image['width'], image['height']), min(scale) / min(
        image['width'], image['height'])) if scale else 1. for image in coco['images']}
    return np.array([(math.sqrt(w * h) * factors[annotation['image_id']], h / w) for annotation in coco['annotations']
                     for *_, w, h in [annotation['bbox']] if w > 0 and h > 0 and annotation['image_id'] in factors])


def _describe(data: Data, sizes: np.ndarray, boxes: np.ndarray) -> list[str]:
    low, middle, high = (' x '.join(map(str, size)) for size in np.quantile(sizes, (0, .5, 1), axis=0).astype(int))
    lines = [f'{name}: {len(split.coco["images"])} images' + (
        '' if data.form == 'label maps' else f', {len(split.coco["annotations"])} objects') + '.'
        for name, split in data.splits.items()]
    lines.append(f'Images are {low} to {high} pixels (width x height), {middle} in the middle, with '
                 f'{" or ".join(map(str, sorted(data.channels)))} channels.')
    if len(boxes):
        (a, b, c), (d, e, f) = np.quantile(boxes, (.25, .5, .75), axis=0).T
        lines.append(f'Boxes have sides of {a:.0f}, {b:.0f} and {c:.0f} pixels at the scale of training (quartiles of '
                     f'the root of the area), and height / width of {d:.2f}, {e:.2f} and {f:.2f}.')
    return lines


def _fit_model(model: dict[str, Any], data: Data, boxes: np.ndarray, crop: tuple[int, int]) -> None:
    """Sets numbers of classes, anchors, limits of detections, and the size of crops, in place."""
    for path, part in walk(model):
        if 'num_classes' in part and 'rpn_head' not in path:
            part['num_classes'] = len(data.classes)
        anchors = part.get('anchor_generator')
        if anchors and len(boxes) and anchors['type'] == 'AnchorGenerator':
            _fit_anchors(anchors, boxes)
    preprocessor = model.get('data_preprocessor') or {}
    if data.form == 'label maps' and 'size' in preprocessor:
        preprocessor['size'] = crop
    if len(boxes):
        coco = data.splits['train'].coco['annotations']
        most = int(np.bincount(np.unique([one['image_id'] for one in coco], return_inverse=True)[1]).max())
        most = min(1000, 100 * math.ceil(most / 100))
        for _, part in [*walk(model.get('train_cfg') or {}), *walk(model.get('test_cfg') or {})]:
            for key, number in (('max_per_img', most), ('nms_pre', 2 * most)):
                if key in part:
                    part[key] = max(part[key], number)


def _fit_anchors(anchors: dict[str, Any], boxes: np.ndarray) -> None:
    """Sets scales and ratios such that anchors have the sizes of all but the smallest and largest boxes."""
    strides = anchors['strides']
    small, large = np.quantile(boxes[:, 0], (.1, .9))
    smallest = max(1., round(float(small) / min(strides), 1))
    if 'octave_base_scale' in anchors:
        anchors['octave_base_scale'] = smallest
    else:
        octaves = max(0, math.ceil(math.log2(large / (smallest * max(strides)))))
        anchors['scales'] = [smallest, smallest * 2**octaves] if octaves else [smallest]
    flat, middle, tall = (round(float(ratio), 2) for ratio in np.quantile(boxes[:, 1], (.1, .5, .9)))
    anchors['ratios'] = [0.5, 1.0, 2.0] if flat > 0.4 and tall < 2.5 else [flat, middle, tall]


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
    if data.form == 'label maps':
        names = [image['file_name'].removesuffix(data.suffixes[0]) for image in split.coco['images']]
        write_text(path.with_suffix('.txt'), '\n'.join(names) + '\n')
    else:
        write_text(path.with_suffix('.json'), json.dumps(split.coco))


def _inside(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _ann_file(split: str, data: Data, annotations: Path) -> str:
    part, suffix = data.splits[split], '.txt' if data.form == 'label maps' else '.json'
    if _is_written(part):
        return str((annotations / split).with_suffix(suffix).resolve())
    return '' if data.form == 'label maps' or part.labels is None else _inside(part.labels, data.root)


def _dataset(split: str, data: Data, annotations: Path, task: str) -> str:
    part, is_train = data.splits[split], split == 'train'
    folder = _inside(part.images, data.root)
    prefix: dict[str, str]
    if task == 'semantic':
        assert part.labels is not None
        kind, prefix = 'BaseSegDataset', dict(img_path=folder, seg_map_path=_inside(part.labels, data.root))
        more = f'\n        img_suffix={data.suffixes[0]!r},\n        seg_map_suffix={data.suffixes[1]!r},'
    else:
        kind, prefix = 'CocoDataset', dict(img='' if folder == '.' else f'{folder}/')
        more = f"\n        {'filter_cfg=dict(filter_empty_gt=True)' if is_train else 'test_mode=True'},"
    return (f"\n        type='{kind}',\n        data_root=data_root,\n        metainfo=metainfo,\n"
            f"        ann_file={_ann_file(split, data, annotations)!r},\n"
            f"        data_prefix={to_source(prefix)},{more}\n"
            f"        pipeline={'train' if is_train else 'test'}_pipeline")


def _evaluation(split: str, data: Data, annotations: Path, task: str) -> str:
    source = split if split in data.splits else 'val'
    file = _ann_file(source, data, annotations)
    where = repr(file) if Path(file).is_absolute() else f'data_root + {file!r}'
    metric = "'bbox'" if task == 'boxes' else "['bbox', 'segm']"
    evaluator = ("type='IoUMetric', iou_metrics=['mIoU']" if task == 'semantic' else
                 f"type='CocoMetric', ann_file={where}, metric={metric}, classwise=True")
    return EVALUATION.format(name=split, dataset=_dataset(source, data, annotations, task), evaluator=evaluator)
