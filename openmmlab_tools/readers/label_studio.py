"""Label Studio's JSON: one file with all tasks, in its full and its short form (JSON-MIN)."""
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlparse

import numpy as np

from openmmlab_tools.data.coco import read_json
from openmmlab_tools.errors import UserError, first_line
from openmmlab_tools.files import IMAGE_SUFFIXES
from openmmlab_tools.readers.form.account import Account
from openmmlab_tools.readers.form.brushes import read_brush
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.form.objects import Shape, ellipse, number_of, points_of, size_of
from openmmlab_tools.readers.form.records import Record, RecordObject, read_many
from openmmlab_tools.texts import shown

from .layouts import LABEL_STUDIO, Reading

SHAPES = ('rectangle', 'ellipse', 'polygon', 'brush')
# Fields that are read, and fields that do not describe objects.
OF_RESULT = frozenset((
    'id', 'type', 'value', 'from_name', 'to_name', 'original_width', 'original_height', 'image_rotation', 'origin',
    'score', 'readonly', 'hidden', 'x', 'y', 'width', 'height', 'rotation', 'radiusX', 'radiusY', 'points', 'closed',
    'labels', 'format', 'rle', *(f'{shape}labels' for shape in SHAPES)))
UPLOAD = re.compile(r'^[0-9a-f]{8}-')  # Label Studio puts this before the names of uploaded files


class Annotation(NamedTuple):
    """A list of results, and why it is left out, if it is."""
    results: list[dict[str, Any]]
    left: str = ''


def read_label_studio(reading: Reading) -> LabelledData:
    """Reads rectangles, ellipses, polygons and brush masks of each task, of its last annotation that has results; a
    UserError for another format.
    """
    return read_many(reading.files, LabelledData(LABEL_STUDIO, reading.folder.root), reading.folder, _records)


def _records(path: Path, account: Account) -> Iterator[Record]:
    tasks = read_json(path)
    for index, task in enumerate(tasks if isinstance(tasks, list) else ()):
        if not isinstance(task, dict):
            raise UserError(f'{path}, task {index}, is {shown(task)}, but a task has data and annotations: export it '
                            'again.')
        where, objects, sizes = f'{path}, task {task.get("id", index)},', list[RecordObject](), set[tuple[int, int]]()
        annotations = [*_annotations(task, where, account)]
        for results, left in annotations:
            # Results with the same id describe the same region, for example its shape and its label.
            regions: dict[object, list[dict[str, Any]]] = {}
            for number, result in enumerate(results):
                account.read(result, OF_RESULT)
                regions.setdefault(result.get('id', number), []).append(result)
            if left:
                objects.append(RecordObject(left=left, records=len(results)))
                continue
            objects += [instance for parts in regions.values() for instance in _record_objects(parts, where, account)]
            sizes |= {size_of(result.get('original_width'), result.get('original_height'), where) for result in results
                      if 'original_width' in result}
        if len(sizes) > 1:
            account.remark('tasks have regions that state different sizes of their image, which percents do not need',
                           where.rstrip(','))
        is_bare = all(annotation.left for annotation in annotations) and 'label' not in task
        yield Record(where, [*_texts(task)], objects, sizes.pop() if len(sizes) == 1 else (0, 0),
                     left='tasks have no annotation yet, or cancelled ones' * is_bare)


def _record_objects(parts: list[dict[str, Any]], where: str, account: Account) -> Iterator[RecordObject]:
    """Yields an object for each label of a region."""
    # The short form does not nest the shape of a result.
    flat = [part | (part['value'] if isinstance(part.get('value'), dict) else {}) for part in parts]
    values = {key: value for part in flat for key, value in part.items()}
    kinds = [str(part.get('type') or '') for part in parts]
    kind = next((part for part in SHAPES if part in kinds or f'{part}labels' in (*kinds, *values)), '')
    labels = (label for part in flat for key in (f'{kind}labels', 'labels') if isinstance(part.get(key), list)
              for label in part[key])
    names = [*dict.fromkeys(filter(None, (str(label).strip() for label in labels)))]
    if not kind:
        other = next(filter(None, kinds), '') or next((key for key in values if key.endswith('labels')), 'unknown')
        yield RecordObject(left=f'objects are of type {other}', records=len(parts))
        return
    if not names:
        yield RecordObject(left='objects are regions without a label', records=len(parts))
        return
    if number_of(values.get('image_rotation') or 0, where, 'image_rotation') % 360:
        account.fields['image_rotation'] += 1
    shape = _shape(kind, values, where)
    for index, name in enumerate(names):
        yield RecordObject(name, shape, records=1 if index else max(len(parts) - len(names) + 1, 1))


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


def _annotations(task: dict[str, Any], where: str, account: Account) -> Iterator[Annotation]:
    """Yields the annotations of a task, and its predictions; all but one are left out. None if it has none."""
    def results_of(annotation: dict[str, Any]) -> list[dict[str, Any]]:
        return [each for each in annotation.get('result') or () if isinstance(each, dict)]

    annotations = task.get('annotations') or task.get('completions')
    if not isinstance(annotations, list):  # the short form has a list for each control, by its name
        results = [annotation for value in task.values() if isinstance(value, list) for annotation in value
                   if isinstance(annotation, dict)]
        if results or 'label' in task:
            yield Annotation(results)
        return
    annotations = [annotation for annotation in annotations if isinstance(annotation, dict)]
    valid = [annotation for annotation in annotations if not annotation.get('was_cancelled')]
    chosen = next((annotation for annotation in reversed(valid) if results_of(annotation)),
                  valid[-1] if valid else None)
    if chosen is not None and chosen is not valid[-1]:
        account.remark('tasks have an empty last annotation, so that an earlier one is read', where.rstrip(','))
    for annotation in annotations:
        yield Annotation(results_of(annotation), '' if annotation is chosen
                         else 'objects are of cancelled annotations' if annotation.get(
            'was_cancelled') else 'objects are of other annotations of their task')
    for annotation in task.get('predictions') or ():
        if isinstance(annotation, dict):
            yield Annotation(results_of(annotation), 'objects are predictions')


def _shape(kind: str, value: dict[str, Any], where: str) -> Shape:
    """Reads a shape, whose numbers are percents of the image; boxes turn clockwise around their upper left corner."""
    if kind == 'brush':
        size = size_of(value.get('original_width'), value.get('original_height'), where)
        try:
            return Shape(pixels=read_brush(value.get('rle') or (), size))
        except (ValueError, TypeError, OverflowError) as error:
            raise UserError(f'{where} has a brush mask that cannot be read ({first_line(error)}): export it again.'
                            ) from error
    if kind == 'polygon':
        return Shape(parts=[points_of(value.get('points'), where) / 100], in_shares=True)
    angle = number_of(value.get('rotation') or 0, where, 'rotation')
    keys = ('x', 'y', 'radiusX', 'radiusY') if kind == 'ellipse' else ('x', 'y', 'width', 'height')
    x, y, width, height = (number_of(value.get(key), where, key) / 100 for key in keys)
    if kind == 'ellipse':
        return Shape(parts=[ellipse(x, y, width, height)], in_shares=True, degrees=angle, pivot=(x, y))
    if angle % 360:
        corners = np.array([(x, y), (x + width, y), (x + width, y + height), (x, y + height)])
        return Shape(parts=[corners], in_shares=True, degrees=angle, pivot=(x, y))
    return Shape((x, y, x + width, y + height), in_shares=True)
