"""LabelMe: a JSON file for each image, with shapes; also of AnyLabeling and X-AnyLabeling."""
import base64
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from openmmlab_tools.data.coco import read_json
from openmmlab_tools.errors import FileFault, UserError, first_line
from openmmlab_tools.files import write_bytes
from openmmlab_tools.pictures.images import NO_IMAGE
from openmmlab_tools.readers.form.account import Account
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.form.folder import Folder
from openmmlab_tools.readers.form.objects import Shape, ellipse, points_of, size_of
from openmmlab_tools.readers.form.records import Record, RecordObject, read_each
from openmmlab_tools.texts import shown

from .layouts import LABELME, Reading

NO_AREA = 'objects are of type {}, which has no area'
IGNORED = '__ignore__'  # LabelMe's converters also skip this class
# Fields that are read, and fields that do not describe objects.
OF_IMAGE = frozenset(('version', 'flags', 'shapes', 'imagePath', 'imageData', 'imageWidth', 'imageHeight', 'lineColor',
                      'fillColor', 'text', 'description'))
OF_SHAPE = frozenset(('label', 'points', 'shape_type', 'group_id', 'mask', 'flags', 'description', 'text', 'score',
                      'line_color', 'fill_color', 'attributes', 'kie_linking', 'direction'))
KINDS = ('polygon', 'rectangle', 'rotation', 'circle', 'mask')


def read_labelme(reading: Reading) -> LabelledData:
    """Reads polygons, rectangles, circles and masks. Shapes with the same `group_id` become one object.

    Raises a UserError for files in another format.
    """
    return read_each(reading.files, LabelledData(LABELME, reading.folder.root), reading.folder, 'JSON file', _records)


def _records(path: Path, account: Account) -> Iterator[Record]:
    content = read_json(path)
    shapes = content.get('shapes') if isinstance(content, dict) else None
    if not isinstance(shapes, list):
        raise FileFault(path, f'has {shown(shapes)} for shapes, but these are a list: correct it')
    account.read(content, OF_IMAGE)
    yield Record(str(path), [_image_in(content)], (
        _record_object(shape, f'{path}, shapes[{index}],', account) for index, shape in enumerate(shapes)),
        size_of(content.get('imageWidth'), content.get('imageHeight'), str(path)))


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
            raise FileFault(path, f'has an imageData that is no image ({first_line(error)}): put the image beside it, '
                            'or save it anew') from error
        place = target / Path(folder.name(path)).with_suffix('.jpg' if form in ('jpeg', 'mpo') else f'.{form}')
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, image)
    if not target.is_dir():
        return folder
    whole = Folder(folder.root, [target])
    whole.labels = folder.labels
    return whole


def _image_in(content: dict[str, Any]) -> str:
    return str(content.get('imagePath') or '')


def _record_object(shape: Any, where: str, account: Account) -> RecordObject:
    if not isinstance(shape, dict) or not isinstance(shape.get('label'), str | int):
        raise UserError(f'{where} is {shown(shape)}, but a shape has a label and points: correct it.')
    account.read(shape, OF_SHAPE, 'shapes.')
    kind, name = shape.get('shape_type') or 'polygon', str(shape['label']).strip()
    if kind not in KINDS or name == IGNORED:
        return RecordObject(left=NO_AREA.format(kind) if kind not in KINDS else f'objects are called {IGNORED}')
    return RecordObject(name, _shape(kind, points_of(shape.get('points'), where), shape, where), shape.get('group_id'))


def _shape(kind: str, points: np.ndarray, shape: dict[str, Any], where: str) -> Shape:
    (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
    match kind, len(points):
        case 'circle', 2:
            radius = float(np.linalg.norm(points[1] - points[0]))
            return Shape(parts=[ellipse(points[0, 0], points[0, 1], radius, radius)])
        case 'rectangle', 2 | 4:
            return Shape((left, top, right, bottom))
        case 'mask', 2:
            return Shape(pixels=_mask(shape.get('mask'), where), place=(round(left), round(top)))
    if len(points) < 3:
        raise UserError(f'{where} is a {kind} of {len(points)} points: correct it.')
    return Shape(parts=[points])


def _mask(text: Any, where: str) -> np.ndarray:
    try:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(text, validate=True)))) > 0
        if pixels.ndim != 2:
            raise ValueError('it has several channels')
        return pixels
    except (TypeError, *NO_IMAGE) as error:
        raise UserError(f'{where} has a mask that is no image ({first_line(error)}): draw it again.') from error
