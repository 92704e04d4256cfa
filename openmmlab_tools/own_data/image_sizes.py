"""Measures boxes, label maps and images, and chooses the size of images in training."""
import math
from dataclasses import dataclass, field

import numpy as np

from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.form.label_map_files import to_classes

SMALL = 16  # pixels; images are not scaled down if half of the objects would be smaller
LARGE = 32  # pixels; images are scaled, whatever their sizes, if three quarters of the objects stay larger
VARIED = 1.5  # images whose sides differ by more, such as in microscopy, keep their sizes
LEAST_CROP = 320  # pixels
THIN = 3.  # pixels; label maps are not scaled down if a class would be thinner
MEASURED = 40  # label maps whose classes are measured
FEW_PIXELS = 100  # of a class, which are not measured
DIVISOR = 32  # pixels; batches are padded to multiples
DRAWN = 1000  # batches that are drawn to measure their padding


@dataclass(frozen=True)
class Fit:
    """Sizes of images in training."""
    scale: tuple[int, int]  # width and height to scale to
    crop: int = 0  # the side of crops; 0 for none. Images of detectors keep their sizes with crops
    boxes: np.ndarray = field(default_factory=lambda: np.empty((0, 2)))  # scaled: root of the area, height / width
    notes: tuple[str, ...] = ()  # sentences about the choice
    factor: float = 1.  # by which images of detectors are scaled before they are cropped, and in tests


def fit_images(data: LabelledData, limit: int, scale: tuple[int, int] | None = None) -> Fit:
    """Chooses the size in training: `scale`, or at most `limit` pixels, or crops if that makes too much too small."""
    sizes = sizes_of(data)
    whole, longest = np.quantile(sizes, .9, axis=0), np.quantile(sizes.max(axis=1), (.1, .5, .9))
    fitting = scale or _scaled(whole, limit)
    cost = ('Larger images need more time and memory for a prediction, and your largest image has '
            f'{sizes.prod(axis=1).max() / 1e6:.1f} million pixels. To scale the images instead, pass --scale WIDTH '
            'HEIGHT.')
    boxes = boxes_of(data, fitting)
    if data.is_semantic and not scale and max(whole) > limit and 0 < (width := _thinnest(data)) * limit < THIN * max(
            whole):
        return Fit(_scaled(whole, round(max(whole))), limit, notes=(
            f'The thinnest class is {width:.1f} pixels wide, so label maps keep their sizes, and training crops them. '
            f'{cost}',))
    if not scale and len(boxes):
        is_varied, are_large = longest[2] > VARIED * longest[0], np.quantile(boxes[:, 0], .25) >= LARGE
        if (is_varied and not are_large) or (longest[2] > max(fitting) and np.median(boxes[:, 0]) < SMALL):
            return Fit(fitting, crop_for(data, limit), boxes_of(data), (
                f'Images keep their sizes, and training crops them, because objects are small. {cost}',))
    return Fit(fitting, boxes=boxes)


def crop_for(data: LabelledData, limit: int, factor: float = 1.) -> int:
    """Returns the side of crops of images that keep their sizes, times a factor."""
    return min(limit, max(LEAST_CROP, int(factor * np.median(sizes_of(data).max(axis=1)))))


def sizes_of(data: LabelledData) -> np.ndarray:
    """Returns width and height of the images to train on, `(N, 2)`."""
    return np.array([picture.size for picture in data.splits['train']])


def padding_share(data: LabelledData, fit: Fit, batch: int) -> float:
    """Returns the share of the pixels of training batches that only pads images to the largest height and width.

    Batches are drawn at random, with one seed. All sides are multiples of `DIVISOR` pixels, also of an image alone.
    """
    sizes = sizes_of(data)
    if fit.crop:
        sizes = np.minimum(np.rint(sizes * fit.factor), fit.crop)
    else:
        factors = np.minimum(max(fit.scale) / sizes.max(axis=1), min(fit.scale) / sizes.min(axis=1))
        sizes = np.rint(sizes * factors[:, None])
    cells = np.ceil(sizes / DIVISOR)
    drawn = cells[np.random.default_rng(0).integers(len(cells), size=(DRAWN, batch))]
    return float(1 - drawn.prod(axis=2).sum() / (batch * drawn.max(axis=1).prod(axis=1).sum()))


def name_sizes(sizes: np.ndarray) -> list[str]:
    """Returns the smallest, the middle and the largest by area of sizes `(N, 2)`, as texts: width x height."""
    ordered = sizes[np.argsort(sizes.prod(axis=1), kind='stable')]
    return [f'{width} x {height}' for width, height in ordered[[0, len(ordered) // 2, -1]]]


def _scaled(size: np.ndarray, limit: int) -> tuple[int, int]:
    width, height = np.ceil(size * min(1, limit / size.max()) - 1e-6).astype(int).tolist()
    return width, height


def boxes_of(data: LabelledData, scale: tuple[int, int] | None = None) -> np.ndarray:
    """Returns the root of the area, and height / width, of all boxes for training, `(N, 2)`, as Resize scales them."""
    boxes = []
    for picture in data.splits['train']:
        factor = min(max(scale) / max(picture.size), min(scale) / min(picture.size)) if scale else 1.
        boxes += [(math.sqrt(w * h) * factor, h / w) for instance in picture.objects
                  for *_, w, h in [instance.keys['bbox']] if w > 0 and h > 0]
    return np.array(boxes).reshape(-1, 2)


def _thinnest(data: LabelledData) -> float:
    """Returns the width of the thinnest class in label maps to train on, in pixels; 0 if none was measured."""
    areas, edges = np.zeros(256), np.zeros(256)
    maps = [picture.label_map for picture in data.splits['train'] if picture.label_map]
    for label_map in maps[::max(1, len(maps) // MEASURED)]:
        labels = to_classes(label_map)
        areas += np.bincount(labels.ravel(), minlength=256)
        for neighbour, other in ((labels[1:], labels[:-1]), (labels[:, 1:], labels[:, :-1])):
            for side in (neighbour[neighbour != other], other[neighbour != other]):
                edges += np.bincount(side, minlength=256)
    return min((2 * area / edge for area, edge in zip(areas[:255], edges[:255], strict=True)
                if area > FEW_PIXELS and edge), default=0.)
