"""CVAT for images 1.1: one XML file with all images."""
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from openmmlab_tools.errors import FileFault, UserError
from openmmlab_tools.readers.form.account import Account
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.form.folder import split_in
from openmmlab_tools.readers.form.objects import Shape, ellipse, number_of, points_of, rotated, size_of
from openmmlab_tools.readers.form.records import Record, RecordObject, read_many
from openmmlab_tools.texts import shown

from .labelme import NO_AREA
from .layouts import CVAT, Reading
from .voc import parse

# Attributes that are read, and attributes that do not describe objects.
OF_IMAGE = frozenset(('id', 'name', 'subset', 'width', 'height', 'task_id', 'job_id'))
OF_SHAPE = frozenset((
    'label', 'source', 'occluded', 'z_order', 'rotation', 'group_id', 'points', 'xtl', 'ytl', 'xbr', 'ybr', 'cx', 'cy',
    'rx', 'ry', 'rle', 'left', 'top', 'width', 'height', 'score'))


def read_cvat(reading: Reading) -> LabelledData:
    """Reads boxes (also rotated), polygons, ellipses and masks. Raises a UserError for another format, or for a video.

    A subset with the name of a split is this split. Shapes with the same label and group become one object, as in
    CVAT's COCO export.
    """
    return read_many(reading.files, LabelledData(CVAT, reading.folder.root), reading.folder, _records)


def _records(path: Path, account: Account) -> Iterator[Record]:
    root = parse(path)
    if root.find('track') is not None and root.find('image') is None:
        raise FileFault(path, 'is an export of a video (<track>): in CVAT, choose Export task dataset, CVAT for images '
                        '1.1, with the images')
    account.read((element.tag for element in root), ('version', 'meta', 'image'))
    for image in root.iter('image'):
        account.read(image.keys(), OF_IMAGE, 'image.')
        # The names in a project's export are those in the folder of a subset.
        name = '/'.join(filter(None, (image.get('subset'), image.get('name'))))
        where = f'{path}, image {image.get("name", "")},'
        size = size_of(image.get('width'), image.get('height'), where)
        yield Record(where, [name], [_record_object(element, where, size, account) for element in image], size,
                     split_in(image.get('subset', '')))


def _record_object(element: Element, where: str, size: tuple[int, int], account: Account) -> RecordObject:
    account.read(element.keys(), OF_SHAPE, f'{element.tag}.')
    shape, group = _shape(element, where, size), element.get('group_id', '0')
    return RecordObject(element.get('label', ''), shape, None if group == '0' else group) if shape else RecordObject(
        left=NO_AREA.format(element.tag))


def _shape(element: Element, where: str, size: tuple[int, int]) -> Shape | None:
    def numbers(*keys: str) -> list[float]:
        return [number_of(element.get(key), where, key) for key in keys]

    angle = number_of(element.get('rotation', '0'), where, 'rotation')
    if element.tag == 'box':
        left, top, right, bottom = corners = numbers('xtl', 'ytl', 'xbr', 'ybr')
        return Shape(corners) if not angle % 360 else Shape(parts=[
            rotated((left + right) / 2, (top + bottom) / 2, right - left, bottom - top, angle)])
    if element.tag == 'polygon':
        return Shape(parts=[points_of([pair.split(',') for pair in element.get('points', '').split(';')], where)])
    if element.tag == 'ellipse':
        x, y, radius_x, radius_y = numbers('cx', 'cy', 'rx', 'ry')
        return Shape(parts=[ellipse(x, y, radius_x, radius_y, angle)])
    return _mask(numbers('left', 'top', 'width', 'height'), element.get('rle', ''), where, size
                 ) if element.tag == 'mask' else None


def _mask(rectangle: list[float], rle: str, where: str, size: tuple[int, int]) -> Shape:
    """Reads a mask: numbers of pixels without and with the object in turn, row by row in a rectangle."""
    left, top, width, height = map(int, rectangle)
    try:
        runs = [int(number) for number in rle.split(',')]
    except ValueError:
        runs = []
    inside = 0 <= left <= left + width <= size[0] and 0 <= top <= top + height <= size[1]
    if not inside or min(runs, default=-1) < 0 or sum(runs) != width * height or size[0] * size[1] > 2**28:
        raise UserError(f'{where} has a mask of {width} x {height} pixels with runs {shown(rle)}, but these do not '
                        'fit its size or the image: export it again.')
    return Shape(pixels=np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(height, width), place=(left, top))
