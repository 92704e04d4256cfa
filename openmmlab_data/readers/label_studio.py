"""Label Studio's JSON: one file with all tasks, in its full and its short form (JSON-MIN)."""
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

from openmmlab_data.form.dataset import LabelledData, LabelledObject, Picture
from openmmlab_data.form.objects import box, ellipse, number_of, points_of, polygons, size_of, turned
from openmmlab_data.form.splits import complete
from openmmlab_runs.data.coco import read_json
from openmmlab_runs.errors import UserError
from openmmlab_runs.texts import shown, told

from .layouts import LABEL_STUDIO, Reading, there

IMAGE_KEYS = ('image', 'img', 'photo', 'picture', 'ocr')
UPLOAD = re.compile(r'^[0-9a-f]{8}-')  # Label Studio puts this before the names of uploaded files


def read_label_studio(reading: Reading) -> LabelledData:
    """Reads rectangles, ellipses and polygons of the last annotation of each task; a UserError for another format."""
    data = LabelledData(LABEL_STUDIO, reading.folder.root)
    pictures: dict[Path, Picture] = {}
    for path in reading.files:
        left_out, missing, unlabelled = Counter[str](), [], 0
        tasks = read_json(path)
        for index, task in enumerate(tasks if isinstance(tasks, list) else ()):
            where = f'{path}, task {index},'
            if not isinstance(task, dict):
                raise UserError(f'{where} is {shown(task)}, but a task has data and annotations: export it again.')
            content = task['data'] if isinstance(task.get('data'), dict) else task
            text = str(next((content[key] for key in IMAGE_KEYS if content.get(key)), task.get('file_upload') or ''))
            place = next((found for name in _names(text) if (found := reading.folder.locate(name, path.parent))), None)
            results = list(_results(task))
            if place is None or not place.is_file():
                missing.append(text)
            elif not results and not task.get('annotations') and 'label' not in task:
                unlabelled += 1
            else:
                pictures[place] = _read_results(results, Picture(place, path), where, left_out)
        data.notes += [f'{count} results of type {kind} are left out'
                       f'{": export them as Brush labels to PNG" if kind == "brushlabels" else ""}.'
                       for kind, count in left_out.items()]
        data.notes += [f'{unlabelled} tasks have no annotation yet and are left out.'] if unlabelled else []
        data.notes += told(missing, f'images of {path.name} are not there and are left out')
    return complete(data, data.measured(there(pictures, reading)), reading.folder, {})


def _read_results(results: list[dict[str, Any]], picture: Picture, where: str, left_out: Counter[str]) -> Picture:
    for result in results:
        # The short form does not nest the shape of a result.
        value = result['value'] if isinstance(result.get('value'), dict) else result
        kind = str(result.get('type') or next((key for key in value if key.endswith('labels')), 'unknown'))
        if kind not in ('rectanglelabels', 'ellipselabels', 'polygonlabels'):
            left_out[kind] += 1
            continue
        labels, both = value.get(kind) or value.get('labels'), {**value, **result}
        picture.stated = size = size_of(both.get('original_width'), both.get('original_height'), where)
        name = str(labels[0]).strip() if isinstance(labels, list) and labels else ''
        picture.objects.append(LabelledObject(name, _shape(kind, value, size, where)))
    return picture


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


def _shape(kind: str, value: dict[str, Any], size: tuple[int, int], where: str) -> dict[str, Any]:
    """Reads a shape, whose numbers are percents of the image; boxes turn clockwise around their upper left corner."""
    if kind == 'polygonlabels':
        return polygons([points_of(value.get('points'), where) * size / 100], size)
    angle = number_of(value.get('rotation') or 0, where, 'rotation')
    keys = ('x', 'y', 'radiusX', 'radiusY') if kind == 'ellipselabels' else ('x', 'y', 'width', 'height')
    x, y, width, height = (number_of(value.get(key), where, key) * side / 100
                           for key, side in zip(keys, size * 2, strict=True))
    if kind == 'ellipselabels':
        return polygons([ellipse(x, y, width, height, angle)], size)
    if angle % 360:
        return polygons([turned([(0, 0), (1, 0), (1, 1), (0, 1)], x, y, width, height, angle)], size)
    return box(x, y, x + width, y + height, size)
