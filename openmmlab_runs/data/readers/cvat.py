"""CVAT for images 1.1: one XML file with all images."""
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from openmmlab_runs.data.folder import Folder, brief
from openmmlab_runs.data.objects import Sample, box, ellipse, mask, number_of, points_of, polygons, rotated, size_of
from openmmlab_runs.data.splits import split_in
from openmmlab_runs.errors import UserError

from .voc import parse

Size = tuple[int, int]


def read_cvat(path: Path, folder: Folder) -> tuple[dict[Path, Sample], dict[str, list[Path]], list[str]]:
    """Reads a file: boxes, also rotated ones, polygons, ellipses and masks.

    Returns:
        Samples by image, the images of each subset that has the name of a split, and notes.

    Raises:
        UserError: If the file is not in this format, or of a video.
    """
    root = parse(path)
    if root.find('track') is not None and root.find('image') is None:
        raise UserError(f'{path} is of a video (<track>): in CVAT choose Export task dataset, CVAT for images 1.1, '
                        'with the images.')
    samples: dict[Path, Sample] = {}
    splits: dict[str, list[Path]] = {}
    left_out, missing = Counter[str](), []
    for image in root.iter('image'):
        name = image.get('name', '')
        place = folder.locate(name, path.parent, path.parent / 'images')
        if place is None or not place.is_file():
            missing.append(name)
            continue
        where = f'{path}, image {name},'
        size = size_of(image.get('width'), image.get('height'), where)
        sample = samples[place] = Sample(place, path, stated=size)
        for found in image:
            if found.tag in SHAPES:
                keys = SHAPES[found.tag](found, where, size)
                sample.objects.append((found.get('label', '').strip(), keys))
            else:
                left_out[found.tag] += 1
        if split := split_in(image.get('subset', '')):
            splits.setdefault(split, []).append(place)
    notes = [f'{count} shapes of type {kind} are left out, since they have no area.'
             for kind, count in left_out.items()]
    if missing:
        notes.append(f'{len(missing)} images of {path.name} are not there and are left out, such as {missing[0]}.')
    return samples, splits, notes


def _numbers(found: Element, where: str, *keys: str) -> list[float]:
    return [number_of(found.get(key), where, key) for key in keys]


def _box(found: Element, where: str, size: Size) -> dict[str, Any]:
    left, top, right, bottom = _numbers(found, where, 'xtl', 'ytl', 'xbr', 'ybr')
    angle = number_of(found.get('rotation', '0'), where, 'rotation')
    if angle % 360:
        return polygons([rotated((left + right) / 2, (top + bottom) / 2, right - left, bottom - top, angle)], size)
    return box(left, top, right, bottom, size)


def _polygon(found: Element, where: str, size: Size) -> dict[str, Any]:
    points = [pair.split(',') for pair in found.get('points', '').split(';')]
    return polygons([points_of(points, where)], size)


def _ellipse(found: Element, where: str, size: Size) -> dict[str, Any]:
    x, y, radius_x, radius_y = _numbers(found, where, 'cx', 'cy', 'rx', 'ry')
    return polygons([ellipse(x, y, radius_x, radius_y, number_of(found.get('rotation', '0'), where, 'rotation'))], size)


def _mask(found: Element, where: str, size: Size) -> dict[str, Any]:
    """Reads a mask: numbers of pixels without and with the object in turn, row by row in a rectangle."""
    left, top, width, height = (int(one) for one in _numbers(found, where, 'left', 'top', 'width', 'height'))
    try:
        runs = [int(one) for one in found.get('rle', '').split(',')]
    except ValueError:
        runs = []
    inside = 0 <= left <= left + width <= size[0] and 0 <= top <= top + height <= size[1]
    if not inside or min(runs, default=-1) < 0 or sum(runs) != width * height or size[0] * size[1] > 2**28:
        raise UserError(f'{where} has a mask of {width} x {height} pixels with runs {brief(found.get("rle"))}, which '
                        'do not fit each other or the image: export it again.')
    pixels = np.zeros((size[1], size[0]), bool)
    values = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    pixels[top:top + height, left:left + width] = values.reshape(height, width)
    return mask(pixels)


SHAPES: dict[str, Callable[[Element, str, Size], dict[str, Any]]] = dict(
    box=_box, polygon=_polygon, ellipse=_ellipse, mask=_mask)
