"""CVAT for images 1.1: one XML file with all images."""
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from openmmlab_data.form.dataset import LabelledData, LabelledObject, Picture
from openmmlab_data.form.objects import box, ellipse, mask, number_of, points_of, polygons, rotated, size_of
from openmmlab_data.form.splits import complete, split_in
from openmmlab_runs.errors import UserError
from openmmlab_runs.texts import shown, told

from .labelme import no_area
from .layouts import CVAT, Reading, there
from .voc import parse


def read_cvat(reading: Reading) -> LabelledData:
    """Reads boxes, also rotated ones, polygons, ellipses and masks; a UserError for another format, or a video. Subsets
    that have the name of a split are splits.
    """
    data, folder = LabelledData(CVAT, reading.folder.root), reading.folder
    pictures: dict[Path, Picture] = {}
    splits: dict[str, list[Path]] = {}
    for path in reading.files:
        root = parse(path)
        if root.find('track') is not None and root.find('image') is None:
            raise UserError(f'{path} is of a video (<track>): in CVAT choose Export task dataset, CVAT for images 1.1, '
                            'with the images.')
        left_out, missing = Counter[str](), []
        for image in root.iter('image'):
            name = image.get('name', '')
            place = folder.locate(name, path.parent, path.parent / 'images')
            if place is None or not place.is_file():
                missing.append(name)
                continue
            pictures[place] = _read_image(image, Picture(place, path), left_out)
            if split := split_in(image.get('subset', '')):
                splits.setdefault(split, []).append(place)
        data.notes += [*no_area(left_out), *told(missing, f'images of {path.name} are not there and are left out')]
    return complete(data, data.measured(there(pictures, reading)), folder, splits)


def _read_image(image: Element, picture: Picture, left_out: Counter[str]) -> Picture:
    where = f'{picture.annotation}, image {image.get("name", "")},'
    picture.stated = size_of(image.get('width'), image.get('height'), where)
    for found in image:
        keys = _shape(found, where, picture.stated)
        if keys is None:
            left_out[found.tag] += 1
        else:
            picture.objects.append(LabelledObject(found.get('label', '').strip(), keys))
    return picture


def _shape(found: Element, where: str, size: tuple[int, int]) -> dict[str, Any] | None:
    def numbers(*keys: str) -> list[float]:
        return [number_of(found.get(key), where, key) for key in keys]

    angle = number_of(found.get('rotation', '0'), where, 'rotation')
    if found.tag == 'box':
        left, top, right, bottom = numbers('xtl', 'ytl', 'xbr', 'ybr')
        return box(left, top, right, bottom, size) if not angle % 360 else polygons(
            [rotated((left + right) / 2, (top + bottom) / 2, right - left, bottom - top, angle)], size)
    if found.tag == 'polygon':
        return polygons([points_of([pair.split(',') for pair in found.get('points', '').split(';')], where)], size)
    if found.tag == 'ellipse':
        x, y, radius_x, radius_y = numbers('cx', 'cy', 'rx', 'ry')
        return polygons([ellipse(x, y, radius_x, radius_y, angle)], size)
    return _mask(numbers('left', 'top', 'width', 'height'), found.get('rle', ''), where, size
                 ) if found.tag == 'mask' else None


def _mask(rectangle: list[float], rle: str, where: str, size: tuple[int, int]) -> dict[str, Any]:
    """Reads a mask: numbers of pixels without and with the object in turn, row by row in a rectangle."""
    left, top, width, height = map(int, rectangle)
    try:
        runs = [int(one) for one in rle.split(',')]
    except ValueError:
        runs = []
    inside = 0 <= left <= left + width <= size[0] and 0 <= top <= top + height <= size[1]
    if not inside or min(runs, default=-1) < 0 or sum(runs) != width * height or size[0] * size[1] > 2**28:
        raise UserError(f'{where} has a mask of {width} x {height} pixels with runs {shown(rle)}, which do not fit '
                        'each other or the image: export it again.')
    pixels = np.zeros((size[1], size[0]), bool)
    values = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    pixels[top:top + height, left:left + width] = values.reshape(height, width)
    return mask(pixels)
