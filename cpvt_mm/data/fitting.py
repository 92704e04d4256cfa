"""Measures boxes and images, and sets what a model needs to know of them."""
import math
from typing import Any

import numpy as np

from cpvt_mm.nested import walk

from .other_formats import LABEL_MAPS
from .splits import Data

SMALL = 16  # pixels; images are not scaled down if half of the objects would be smaller
VARIED = 1.5  # images whose sides differ by more keep their sizes, as those of a microscope
LEAST_CROP = 320  # pixels


def fit_images(data: Data, limit: int, scale: tuple[int, int] | None = None
               ) -> tuple[tuple[int, int], int, np.ndarray]:
    """Chooses the size of images in training.

    Args:
        data: The data.
        limit: The longest side of images in training, in pixels.
        scale: Width and height, if they are given. Defaults to None.

    Returns:
        Width and height to scale to, the side of crops if images keep their sizes instead or 0, and the boxes at the
        scale of training: `(N, 2)`, the root of the area in pixels, and height / width.
    """
    sizes = sizes_of(data)
    longest = np.quantile(sizes.max(axis=1), (.1, .5, .9))
    fitting = scale or _scaled(np.quantile(sizes, .9, axis=0), limit)
    boxes = _boxes(data, fitting)
    if not scale and len(boxes) and (longest[2] > VARIED * longest[0] or (
            longest[2] > max(fitting) and np.median(boxes[:, 0]) < SMALL)):
        return fitting, min(limit, max(LEAST_CROP, int(longest[1]))), _boxes(data)
    return fitting, 0, boxes


def sizes_of(data: Data) -> np.ndarray:
    """Returns width and height of the images to train on, `(N, 2)`."""
    return np.array([(image['width'], image['height']) for image in data.splits['train'].coco['images']])


def _scaled(size: np.ndarray, limit: int) -> tuple[int, int]:
    width, height = np.ceil(size * min(1, limit / size.max())).astype(int).tolist()
    return width, height


def _boxes(data: Data, scale: tuple[int, int] | None = None) -> np.ndarray:
    coco = data.splits['train'].coco
    factors = {image['id']: min(max(scale) / max(image['width'], image['height']), min(scale) / min(
        image['width'], image['height'])) if scale else 1. for image in coco['images']}
    return np.array([(math.sqrt(w * h) * factors[annotation['image_id']], h / w) for annotation in coco['annotations']
                     for *_, w, h in [annotation['bbox']] if w > 0 and h > 0 and annotation['image_id'] in factors])


def describe(data: Data, boxes: np.ndarray) -> list[str]:
    """Returns sentences about the data, with `boxes` of `fit_images`."""
    sizes = np.quantile(sizes_of(data), (0, .5, 1), axis=0).astype(int)
    low, middle, high = (' x '.join(map(str, size)) for size in sizes)
    lines = [f'{data.root} has {data.form}.', *(f'{name}: {len(split.coco["images"])} images' + (
        '' if data.form == LABEL_MAPS else f', {len(split.coco["annotations"])} objects') + '.'
        for name, split in data.splits.items())]
    lines.append(f'Images are {low} to {high} pixels (width x height), {middle} in the middle, with '
                 f'{" or ".join(map(str, sorted(data.channels)))} channels.')
    if len(boxes):
        (a, b, c), (d, e, f) = np.quantile(boxes, (.25, .5, .75), axis=0).T
        lines.append(f'Boxes have sides of {a:.0f}, {b:.0f} and {c:.0f} pixels at the scale of training (quartiles of '
                     f'the root of the area), and height / width of {d:.2f}, {e:.2f} and {f:.2f}.')
    if max(data.channels) > 3:
        lines.append('Of more than three channels, mmcv reads the first three.')
    return [*lines, *data.notes]


def fit_model(model: dict[str, Any], data: Data, boxes: np.ndarray, crop: tuple[int, int]) -> None:
    """Sets numbers of classes, anchors, limits of detections, and height and width of label maps' crops, in place."""
    set_classes(model, len(data.classes))
    for _, part in walk(model):
        anchors = part.get('anchor_generator')
        if anchors and len(boxes) and anchors['type'] == 'AnchorGenerator':
            _fit_anchors(anchors, boxes)
    preprocessor = model.get('data_preprocessor') or {}
    if data.form == LABEL_MAPS and 'size' in preprocessor:
        preprocessor['size'] = crop
    if len(boxes):
        coco = data.splits['train'].coco['annotations']
        most = int(np.bincount(np.unique([one['image_id'] for one in coco], return_inverse=True)[1]).max())
        most = min(1000, 100 * math.ceil(most / 100))
        for _, part in [*walk(model.get('train_cfg') or {}), *walk(model.get('test_cfg') or {})]:
            for key, number in (('max_per_img', most), ('nms_pre', 2 * most)):
                if key in part:
                    part[key] = max(part[key], number)


def set_classes(model: dict[str, Any], number: int) -> None:
    """Sets the number of classes in all heads of a model, in place; a region proposal network has one class."""
    for path, part in walk(model):
        if 'num_classes' in part and 'rpn_head' not in path:
            part['num_classes'] = number


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
