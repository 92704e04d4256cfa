"""LabelMe: a JSON file for each image, with shapes; also of AnyLabeling and X-AnyLabeling."""
import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from openmmlab_data.form.account import Account
from openmmlab_data.form.dataset import LabelledData, LabelledObject, Picture
from openmmlab_data.form.folder import Folder
from openmmlab_data.form.objects import box, ellipse, mask, merged, points_of, polygons, size_of
from openmmlab_data.form.splits import complete, pictures_of
from openmmlab_runs.data.coco import read_json
from openmmlab_runs.data.findings import NO_IMAGE
from openmmlab_runs.errors import UserError, first_line
from openmmlab_runs.files import write_bytes
from openmmlab_runs.texts import shown

from .layouts import LABELME, Reading
from .voc import read_lists

NO_AREA = 'objects are of type {}, which has no area'
IGNORED = '__ignore__'  # LabelMe's own converters leave it out, too
# Fields that are read, or that say nothing about objects.
OF_IMAGE = frozenset(('version', 'flags', 'shapes', 'imagePath', 'imageData', 'imageWidth', 'imageHeight', 'lineColor',
                      'fillColor', 'text', 'description'))
OF_SHAPE = frozenset(('label', 'points', 'shape_type', 'group_id', 'mask', 'flags', 'description', 'text', 'score',
                      'line_color', 'fill_color', 'attributes', 'kie_linking', 'direction'))
SIMPLE = {('rectangle', 2), ('rectangle', 4), ('mask', 2), ('circle', 2)}  # types of shapes, and their points


def read_labelme(reading: Reading) -> LabelledData:
    """Reads polygons, rectangles, circles and masks, one object by `group_id`; a UserError for another format."""
    data, folder = LabelledData(LABELME, reading.folder.root), reading.folder
    pictures = pictures_of(reading.files, folder, 'JSON file', data, lambda path: _image_in(read_json(path)))
    for picture in pictures:
        file = str(picture.annotation)
        content = read_json(Path(file))
        shapes = content.get('shapes') if isinstance(content, dict) else None
        if not isinstance(shapes, list):
            raise UserError(f'{file} has {shown(shapes)} for shapes, but these are a list: correct it.')
        data.account.read(content, OF_IMAGE)
        data.account.seen['objects'] += len(shapes)
        picture.stated = size_of(content.get('imageWidth'), content.get('imageHeight'), file)
        _read_shapes(shapes, picture, data.account)
    return complete(data, pictures, folder, read_lists(data, folder, 'Main', [one.path for one in pictures]))


def with_embedded(files: Sequence[Path], folder: Folder, target: Path) -> Folder:
    """Writes images that are only in files of LabelMe (`imageData`), and returns the folder with them."""
    for path in files:
        if folder.image_of(path):
            continue
        content = read_json(path)
        text = content.get('imageData') if isinstance(content, dict) else None
        if not isinstance(text, str) or folder.match([_image_in(content)], path, path.parent):
            continue
        try:
            image = base64.b64decode(text)
            form = str(Image.open(io.BytesIO(image)).format).lower()
        except NO_IMAGE as error:
            raise UserError(f'{path} has an imageData that is no image ({first_line(error)}): put the image beside it, '
                            'or save it anew.') from error
        place = target / Path(folder.name(path)).with_suffix('.jpg' if form in ('jpeg', 'mpo') else f'.{form}')
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, image)
    return Folder(folder.root, [target]) if target.is_dir() else folder


def _image_in(content: Any) -> str:
    return str(content.get('imagePath') or '') if isinstance(content, dict) else ''


def _read_shapes(shapes: list[Any], picture: Picture, account: Account) -> None:
    groups: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    for index, shape in enumerate(shapes):
        where = f'{picture.annotation}, shapes[{index}],'
        if not isinstance(shape, dict) or not isinstance(shape.get('label'), str | int):
            raise UserError(f'{where} is {shown(shape)}, but a shape has a label and points: correct it.')
        account.read(shape, OF_SHAPE, 'shapes.')
        kind, name = shape.get('shape_type') or 'polygon', str(shape['label']).strip()
        if kind not in ('polygon', 'rectangle', 'rotation', 'circle', 'mask'):
            account.leave('objects', NO_AREA.format(kind), picture.annotation)
        elif name == IGNORED:
            account.leave('objects', f'objects are called {IGNORED}', picture.annotation)
        else:
            group = shape.get('group_id')
            groups.setdefault((name, index if group is None else str(group)), []).append(
                _shape(kind, points_of(shape.get('points'), where), shape, picture.size, where))
    picture.objects += [LabelledObject(name, merged(parts, picture.size), len(parts))
                        for (name, _), parts in groups.items()]


def _shape(kind: str, points: np.ndarray, shape: dict[str, Any], size: tuple[int, int], where: str) -> dict[str, Any]:
    if (kind, len(points)) in SIMPLE:
        return _simple(kind, points, shape, size, where)
    if len(points) < 3:
        raise UserError(f'{where} is a {kind} of {len(points)} points: correct it.')
    return polygons([points], size)


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
