"""LabelMe: a JSON file for each image, with shapes; also of AnyLabeling and X-AnyLabeling."""
import base64
import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from openmmlab_data.form.dataset import LabelledData, LabelledObject, Picture
from openmmlab_data.form.objects import box, ellipse, mask, points_of, polygons, size_of
from openmmlab_data.form.splits import complete, pictures_of
from openmmlab_runs.data.coco import read_json
from openmmlab_runs.data.findings import NO_IMAGE
from openmmlab_runs.errors import UserError, first_line
from openmmlab_runs.texts import shown

from .layouts import LABELME, Reading
from .voc import read_lists

SIMPLE = {('rectangle', 2), ('rectangle', 4), ('mask', 2), ('circle', 2)}  # types of shapes, and their points


def read_labelme(reading: Reading) -> LabelledData:
    """Reads polygons (one object by `group_id`), rectangles, circles and masks; a UserError for another format."""
    data, folder = LabelledData(LABELME, reading.folder.root), reading.folder
    pictures, left_out = pictures_of(reading.files, folder, 'JSON file', data), Counter[str]()
    for picture in pictures:
        file = str(picture.annotation)
        content = read_json(Path(file))
        shapes = content.get('shapes') if isinstance(content, dict) else None
        if not isinstance(shapes, list):
            raise UserError(f'{file} has {shown(shapes)} for shapes, but these are a list: correct it.')
        picture.stated = size_of(content.get('imageWidth'), content.get('imageHeight'), file)
        _read_shapes(shapes, picture, left_out)
    data.notes += no_area(left_out)
    return complete(data, pictures, folder, read_lists(folder, 'Main', [one.path for one in pictures]))


def _read_shapes(shapes: list[Any], picture: Picture, left_out: Counter[str]) -> None:
    groups: dict[tuple[str, Any], list[np.ndarray]] = {}
    for index, shape in enumerate(shapes):
        where = f'{picture.annotation}, shapes[{index}],'
        if not isinstance(shape, dict) or not isinstance(shape.get('label'), str | int):
            raise UserError(f'{where} is {shown(shape)}, but a shape has a label and points: correct it.')
        kind = shape.get('shape_type') or 'polygon'
        if kind not in ('polygon', 'rectangle', 'rotation', 'circle', 'mask'):
            left_out[str(kind)] += 1
            continue
        name, points = str(shape['label']).strip(), points_of(shape.get('points'), where)
        if (kind, len(points)) in SIMPLE:
            picture.objects.append(LabelledObject(name, _simple(kind, points, shape, picture.size, where)))
        elif len(points) < 3:
            raise UserError(f'{where} is a {kind} of {len(points)} points: correct it.')
        else:
            group = shape.get('group_id')
            groups.setdefault((name, index if group is None else str(group)), []).append(points)
    picture.objects += [LabelledObject(name, polygons(parts, picture.size)) for (name, _), parts in groups.items()]


def no_area(kinds: Counter[str]) -> list[str]:
    return [f'{count} shapes of type {kind} are left out, since they have no area.' for kind, count in kinds.items()]


def _simple(kind: str, points: np.ndarray, shape: dict[str, Any], size: tuple[int, int], where: str) -> dict[str, Any]:
    (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
    if kind == 'circle':
        radius = float(np.linalg.norm(points[1] - points[0]))
        return polygons([ellipse(points[0, 0], points[0, 1], radius, radius)], size)
    if kind == 'rectangle':
        return box(left, top, right, bottom, size)
    try:
        cut = np.asarray(Image.open(io.BytesIO(base64.b64decode(shape['mask'], validate=True)))) > 0
        if cut.ndim != 2:
            raise ValueError('it has several channels')
    except (KeyError, TypeError, *NO_IMAGE) as error:
        raise UserError(f'{where} has a mask that is no image ({first_line(error)}): draw it again.') from error
    pixels = np.zeros((size[1], size[0]), bool)
    x, y = max(round(left), 0), max(round(top), 0)
    part = pixels[y:y + cut.shape[0], x:x + cut.shape[1]]
    part[:] = cut[:part.shape[0], :part.shape[1]]
    return mask(pixels)
