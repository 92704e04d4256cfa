"""Measures boxes, label maps and images, and sets what a model needs to know of them."""
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openmmlab_data.form.splits import Data, Split
from openmmlab_data.readers.label_maps import read_label_map, to_classes
from openmmlab_runs.config_walk import walk

from .channels import Bands

FOR_CPU = ('nano', 'pvtv2-b0')  # archs whose configs have narrow necks and heads
# The longest side of images in training, in pixels: on a GPU, and on a CPU.
LIMITS = dict(boxes=(1333, 480), instances=(1333, 480), semantic=(1024, 320))
SMALL = 16  # pixels; images are not scaled down if half of the objects would be smaller
LARGE = 32  # pixels; images are scaled, whatever their sizes, if three quarters of the objects stay larger
VARIED = 1.5  # images whose sides differ by more keep their sizes, as those of a microscope
LEAST_CROP = 320  # pixels
THIN = 3.  # pixels; label maps are not scaled down if a class would be thinner
MEASURED = 40  # label maps whose classes are measured
FEW_PIXELS = 100  # of a class, which are not measured


@dataclass(frozen=True)
class Fit:
    """Sizes of images in training."""
    scale: tuple[int, int]  # width and height to scale to
    crop: int = 0  # the side of crops; 0 for none. Images of detectors keep their sizes with crops
    boxes: np.ndarray = field(default_factory=lambda: np.empty((0, 2)))  # scaled: root of the area, height / width
    notes: tuple[str, ...] = ()  # sentences about the choice


def fit_images(data: Data, limit: int, scale: tuple[int, int] | None = None) -> Fit:
    """Chooses the size in training: `scale`, or at most `limit` pixels, or crops if that makes too much too small."""
    sizes = sizes_of(data)
    whole, longest = np.quantile(sizes, .9, axis=0), np.quantile(sizes.max(axis=1), (.1, .5, .9))
    fitting = scale or _scaled(whole, limit)
    cost = (f'a prediction takes time and memory by the pixel, {sizes.prod(axis=1).max() / 1e6:.1f} million for the '
            'largest image; --scale WIDTH HEIGHT scales them.')
    boxes = _boxes(data, fitting)
    if data.is_semantic and not scale and max(whole) > limit and 0 < (width := _thinnest(data)) * limit < THIN * max(
            whole):
        return Fit(_scaled(whole, round(max(whole))), limit, notes=(
            f'The thinnest class is {width:.1f} pixels wide, so label maps keep their sizes, and training crops them: '
            f'{cost}',))
    if not scale and len(boxes):
        is_varied, are_large = longest[2] > VARIED * longest[0], np.quantile(boxes[:, 0], .25) >= LARGE
        if (is_varied and not are_large) or (longest[2] > max(fitting) and np.median(boxes[:, 0]) < SMALL):
            return Fit(fitting, min(limit, max(LEAST_CROP, int(longest[1]))), _boxes(data), (
                f'Images keep their sizes, and training crops them, since objects are small: {cost}',))
    return Fit(fitting, boxes=boxes)


def sizes_of(data: Data) -> np.ndarray:
    """Returns width and height of the images to train on, `(N, 2)`."""
    return np.array([(image['width'], image['height']) for image in data.splits['train'].coco['images']])


def name_sizes(sizes: np.ndarray) -> list[str]:
    """Returns the smallest, the middle and the largest by area of sizes `(N, 2)`, as texts: width x height."""
    ordered = sizes[np.argsort(sizes.prod(axis=1), kind='stable')]
    return [f'{width} x {height}' for width, height in ordered[[0, len(ordered) // 2, -1]]]


def _scaled(size: np.ndarray, limit: int) -> tuple[int, int]:
    width, height = np.ceil(size * min(1, limit / size.max()) - 1e-6).astype(int).tolist()
    return width, height


def _boxes(data: Data, scale: tuple[int, int] | None = None) -> np.ndarray:
    coco = data.splits['train'].coco
    factors = {image['id']: min(max(scale) / max(image['width'], image['height']), min(scale) / min(
        image['width'], image['height'])) if scale else 1. for image in coco['images']}
    return np.array([(math.sqrt(w * h) * factors[annotation['image_id']], h / w) for annotation in coco['annotations']
                     for *_, w, h in [annotation['bbox']] if w > 0 and h > 0 and annotation['image_id'] in factors]
                    ).reshape(-1, 2)


def _thinnest(data: Data) -> float:
    """Returns the width of the thinnest class in label maps to train on, in pixels; 0 if none was measured."""
    split: Split = data.splits['train']
    areas, edges = np.zeros(256), np.zeros(256)
    images = [image for image in split.coco['images'] if 'label_map' in image]
    for image in images[::max(1, len(images) // MEASURED)]:
        labels = to_classes(image['label_map'], split.meaning) if split.meaning else read_label_map(image['label_map'])
        areas += np.bincount(labels.ravel().clip(0, 255), minlength=256)
        for one, other in ((labels[1:], labels[:-1]), (labels[:, 1:], labels[:, :-1])):
            for side in (one[one != other], other[one != other]):
                edges += np.bincount(side.clip(0, 255), minlength=256)
    return min((2 * area / edge for area, edge in zip(areas[:255], edges[:255], strict=True)
                if area > FEW_PIXELS and edge), default=0.)


def is_for_cpu(model: dict[str, Any]) -> bool:
    """Tells whether a backbone of a model, or of a part of it, is one of `FOR_CPU`."""
    return any(part.get('arch') in FOR_CPU for path, part in walk(model) if path[-1:] == ('backbone',))


def describe_data(data: Data, fit: Fit, bands: Bands | None = None) -> list[str]:
    """Returns sentences about data; `bands` are those of images that are loaded whole, not by mmcv's loader."""
    low, middle, high = name_sizes(sizes_of(data))
    lines = [f'{data.root} has {data.form}.', *(f'{name}: {len(split.coco["images"])} images of {split.folders}' + (
        '' if data.is_semantic else f', {len(split.coco["annotations"])} objects') + '.'
        for name, split in data.splits.items())]
    lines.append(f'Images are {low} to {high} pixels (width x height), {middle} in the middle, with '
                 f'{" or ".join(map(str, sorted({one.channels for one in data.pixels})))} channels.')
    if len(fit.boxes):
        (a, b, c), (d, e, f) = np.quantile(fit.boxes, (.25, .5, .75), axis=0).T
        lines.append(f'Boxes have sides of {a:.0f}, {b:.0f} and {c:.0f} pixels at the scale of training (quartiles of '
                     f'the root of the area), and height / width of {d:.2f}, {e:.2f} and {f:.2f}.')
    deep = sum(number for one, number in data.pixels.items() if not one.is_plain)
    if bands:
        lines += bands.notes
    elif max(one.channels for one in data.pixels) > 3:
        lines.append('Of more than three channels, mmcv reads the first three. If the fourth is no alpha, save images '
                     "as TIFF that does not call it so (tifffile: photometric='rgb', extrasamples=['unspecified']).")
    if deep and not bands:
        lines.append(f'{deep} images have 16 bits per channel, but are read as 8 bits (value // 256): convert '
                     'them to 8 bits, with the range of values that you need.')
    return [*lines, *fit.notes, *data.notes]


def fit_model(model: dict[str, Any], data: Data, fit: Fit) -> None:
    """Sets numbers of classes, anchors, limits of detections, and height and width of label maps' crops, in place."""
    set_classes(model, len(data.classes))
    for _, part in walk(model):
        if part.get('type') == 'AnchorGenerator' and len(fit.boxes):
            _fit_anchors(part, fit.boxes)
    preprocessor = model.get('data_preprocessor') or {}
    if data.is_semantic and 'size' in preprocessor:
        preprocessor['size'] = (fit.crop, fit.crop) if fit.crop else fit.scale[::-1]
    if len(fit.boxes):
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
