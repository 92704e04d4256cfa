"""CVAT for images 1.1: one XML file with all images."""
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from openmmlab_data.form.account import Account
from openmmlab_data.form.dataset import LabelledData, LabelledObject, Picture, one_of_each
from openmmlab_data.form.folder import split_in
from openmmlab_data.form.objects import (
    box,
    ellipse,
    mask,
    merged,
    number_of,
    ordered,
    points_of,
    polygons,
    rotated,
    size_of,
)
from openmmlab_data.form.splits import complete
from openmmlab_runs.errors import UserError
from openmmlab_runs.texts import shown

from .labelme import NO_AREA
from .layouts import CVAT, Reading, there
from .voc import parse

# Attributes that are read, or that say nothing about objects.
OF_IMAGE = frozenset(('id', 'name', 'subset', 'width', 'height', 'task_id', 'job_id'))
OF_SHAPE = frozenset((
    'label', 'source', 'occluded', 'z_order', 'rotation', 'group_id', 'points', 'xtl', 'ytl', 'xbr', 'ybr', 'cx', 'cy',
    'rx', 'ry', 'rle', 'left', 'top', 'width', 'height', 'score'))


def read_cvat(reading: Reading) -> LabelledData:
    """Reads boxes, also rotated ones, polygons, ellipses and masks; a UserError for another format, or a video. Subsets
    that have the name of a split are splits. Shapes of one label and group are one object, as in CVAT's own COCO files.
    """
    data, folder = LabelledData(CVAT, reading.folder.root), reading.folder
    pictures: list[Picture] = []
    splits: dict[str, list[Path]] = {}
    for path in reading.files:
        root = parse(path)
        if root.find('track') is not None and root.find('image') is None:
            raise UserError(f'{path} is of a video (<track>): in CVAT choose Export task dataset, CVAT for images 1.1, '
                            'with the images.')
        data.account.read((one.tag for one in root), ('version', 'meta', 'image'))
        # The names in a project's export are those in the folder of a subset.
        by_name = [('/'.join(filter(None, (one.get('subset'), one.get('name')))), one) for one in root.iter('image')]
        places = folder.match([name for name, _ in by_name], path, path.parent, path.parent / 'images')
        for name, image in by_name:
            data.account.seen += Counter(images=1, objects=len(image))
            data.account.read(image.keys(), OF_IMAGE, 'image.')
            if (place := places.get(name)) is None:
                data.account.leave('images', f'images of {path.name} are not there', name)
                data.account.leave('objects', 'objects are of images that are not there', '', len(image))
                continue
            pictures.append(_read_image(image, Picture(place, path), data.account))
            if split := split_in(image.get('subset', '')):
                splits.setdefault(split, []).append(place)
    pictures = one_of_each(pictures, data.account)
    return complete(data, data.measured(there(pictures, reading)), folder, splits)


def _read_image(image: Element, picture: Picture, account: Account) -> Picture:
    where = f'{picture.annotation}, image {image.get("name", "")},'
    picture.stated = size_of(image.get('width'), image.get('height'), where)
    groups: dict[tuple[str, object], list[dict[str, Any]]] = {}
    for index, found in enumerate(image):
        keys = _shape(found, where, picture.stated, account)
        account.read(found.keys(), OF_SHAPE, f'{found.tag}.')
        if keys is None:
            account.leave('objects', NO_AREA.format(found.tag), picture.path.name)
            continue
        name, group = found.get('label', '').strip(), found.get('group_id', '0')
        groups.setdefault((name, index if group == '0' else group), []).append(keys)
    picture.objects = [LabelledObject(name, merged(parts, picture.stated), len(parts))
                       for (name, _), parts in groups.items()]
    return picture


def _shape(found: Element, where: str, size: tuple[int, int], account: Account) -> dict[str, Any] | None:
    def numbers(*keys: str) -> list[float]:
        return [number_of(found.get(key), where, key) for key in keys]

    angle = number_of(found.get('rotation', '0'), where, 'rotation')
    if found.tag == 'box':
        left, top, right, bottom = ordered(numbers('xtl', 'ytl', 'xbr', 'ybr'), account, where)
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
