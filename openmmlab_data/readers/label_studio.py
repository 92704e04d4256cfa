"""Label Studio's JSON: one file with all tasks, in its full and its short form (JSON-MIN)."""
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

from openmmlab_data.form.account import Account
from openmmlab_data.form.dataset import LabelledData
from openmmlab_data.form.objects import Shape, ellipse, number_of, points_of, size_of, turned
from openmmlab_data.form.records import Found, Record, read_many
from openmmlab_runs.data.coco import read_json
from openmmlab_runs.errors import UserError
from openmmlab_runs.files import IMAGE_SUFFIXES
from openmmlab_runs.texts import shown

from .layouts import LABEL_STUDIO, Reading

SHAPES = ('rectangle', 'ellipse', 'polygon')
# Fields that are read, or that say nothing about objects.
OF_RESULT = frozenset((
    'id', 'type', 'value', 'from_name', 'to_name', 'original_width', 'original_height', 'image_rotation', 'origin',
    'score', 'readonly', 'hidden', 'x', 'y', 'width', 'height', 'rotation', 'radiusX', 'radiusY', 'points', 'closed',
    'labels', *(f'{shape}labels' for shape in SHAPES)))
UPLOAD = re.compile(r'^[0-9a-f]{8}-')  # Label Studio puts this before the names of uploaded files


def read_label_studio(reading: Reading) -> LabelledData:
    """Reads rectangles, ellipses and polygons of the last annotation of each task; a UserError for another format."""
    return read_many(reading.files, LabelledData(LABEL_STUDIO, reading.folder.root), reading.folder, _records)


def _records(path: Path, account: Account) -> Iterator[Record]:
    tasks = read_json(path)
    for index, task in enumerate(tasks if isinstance(tasks, list) else ()):
        if not isinstance(task, dict):
            raise UserError(f'{path}, task {index}, is {shown(task)}, but a task has data and annotations: export it '
                            'again.')
        # Results of one id are about one region, such as its shape and its label.
        results, regions = [*_results(task)], dict[object, list[dict[str, Any]]]()
        for number, result in enumerate(results):
            account.read(result, OF_RESULT)
            regions.setdefault(result.get('id', number), []).append(result)
        where = f'{path}, task {task.get("id", index)},'
        size = next((_size(one, where) for one in results if 'original_width' in one), (0, 0))
        is_bare = not results and not task.get('annotations') and 'label' not in task
        yield Record(where, [*_texts(task)], [_found(parts, where, account) for parts in regions.values()], size,
                     left='tasks have no annotation yet' * is_bare)


def _size(values: dict[str, Any], where: str) -> tuple[int, int]:
    return size_of(values.get('original_width'), values.get('original_height'), where)


def _found(parts: list[dict[str, Any]], where: str, account: Account) -> Found:
    # The short form does not nest the shape of a result.
    values: dict[str, Any] = {}
    for part in parts:
        values |= part | (part['value'] if isinstance(part.get('value'), dict) else {})
    kinds = [str(part.get('type') or '') for part in parts]
    kind = next((one for one in SHAPES if one in kinds or f'{one}labels' in (*kinds, *values)), '')
    labels = values.get(f'{kind}labels') or values.get('labels')
    name = str(labels[0]).strip() if isinstance(labels, list) and labels else ''
    if not kind:
        what = next(filter(None, kinds), '') or next((key for key in values if key.endswith('labels')), 'unknown')
        remedy = ' (export them as Brush labels to PNG)' if what == 'brushlabels' else ''
        return Found(left=f'objects are of type {what}{remedy}', records=len(parts))
    if not name:
        return Found(left='objects are regions without a label', records=len(parts))
    if number_of(values.get('image_rotation') or 0, where, 'image_rotation') % 360:
        account.fields['image_rotation'] += 1
    return Found(name, _shape(kind, values, _size(values, where), where), records=len(parts))


def _texts(task: dict[str, Any]) -> Iterator[str]:
    """Yields what may be the image of a task: values of its data that end as images do, and the name of its upload."""
    content = task['data'] if isinstance(task.get('data'), dict) else task
    for text in (*content.values(), task.get('file_upload')):
        for name in _names(text) if isinstance(text, str) else ():
            if Path(name).suffix.lower() in IMAGE_SUFFIXES:
                yield name


def _names(text: str) -> Iterator[str]:
    """Yields the names that a file of an address may have here."""
    address = urlparse(text)
    for name in (*parse_qs(address.query).get('d', ()), unquote(address.path), text):
        yield name
        yield UPLOAD.sub('', Path(name.replace('\\', '/')).name)


def _results(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    annotations = task.get('annotations') or task.get('completions')
    if isinstance(annotations, list):
        last = [one for one in annotations if isinstance(one, dict) and not one.get('was_cancelled')][-1:]
        lists = [one.get('result') for one in last]
    else:  # the short form has a list for each control, by its name
        lists = [value for value in task.values() if isinstance(value, list)]
    for results in lists:
        yield from (one for one in results or () if isinstance(one, dict))


def _shape(kind: str, value: dict[str, Any], size: tuple[int, int], where: str) -> Shape:
    """Reads a shape, whose numbers are percents of the image; boxes turn clockwise around their upper left corner."""
    if kind == 'polygon':
        return Shape(parts=[points_of(value.get('points'), where) * size / 100])
    angle = number_of(value.get('rotation') or 0, where, 'rotation')
    keys = ('x', 'y', 'radiusX', 'radiusY') if kind == 'ellipse' else ('x', 'y', 'width', 'height')
    x, y, width, height = (number_of(value.get(key), where, key) * side / 100
                           for key, side in zip(keys, size * 2, strict=True))
    if kind == 'ellipse':
        return Shape(parts=[ellipse(x, y, width, height, angle)])
    if angle % 360:
        return Shape(parts=[turned([(0, 0), (1, 0), (1, 1), (0, 1)], x, y, width, height, angle)])
    return Shape((x, y, x + width, y + height))
