"""Boxes in CSV files: a line for each, of TensorFlow, Keras RetinaNet, Open Images, makesense, VIA and VoTT."""
import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

from openmmlab_data.form.account import Account
from openmmlab_data.form.dataset import LabelledData, LabelledObject, Picture, one_of_each
from openmmlab_data.form.folder import Folder, head, read_text, split_in
from openmmlab_data.form.objects import box, ellipse, number_of, ordered, points_of, polygons, size_of
from openmmlab_data.form.splits import complete, split_of
from openmmlab_runs.errors import UserError
from openmmlab_runs.texts import shown

from .layouts import CSV, Reading, there

# What is read, and how headings call it, in lower case without blanks and underscores.
HEADINGS = dict(
    image=('filename', 'image', 'imageid', 'imagename', 'imagepath', 'file', 'path'),
    name=('class', 'label', 'labelname', 'classname', 'category', 'name'),
    left=('xmin', 'x1', 'left'), top=('ymin', 'y1', 'top'),
    right=('xmax', 'x2', 'right'), bottom=('ymax', 'y2', 'bottom'),
    width=('width', 'imagewidth'), height=('height', 'imageheight'),
    shape=('regionshapeattributes',), attributes=('regionattributes',))
# Headings that say nothing about boxes: those of Open Images and VIA.
KNOWN = frozenset(('source', 'confidence', 'isoccluded', 'istruncated', 'isdepiction', 'isinside', 'filesize',
                   'fileattributes', 'regioncount', 'regionid'))
CORNERS = ('left', 'top', 'right', 'bottom')
# Columns of files without headings: of Keras RetinaNet, and of makesense. All but two are numbers.
BARE = (('image', *CORNERS, 'name'), ('name', 'x', 'y', 'w', 'h', 'image', 'width', 'height'))
VIA_KEYS = dict(rect=('x', 'y', 'width', 'height'), circle=('cx', 'cy', 'r', 'r'), ellipse=('cx', 'cy', 'rx', 'ry'))

Row = dict[str, str]


def find_csv(folder: Folder) -> list[Path]:
    """Returns CSV files with boxes, by their first lines."""
    return [path for path in folder.of('.csv') if _columns(_rows(head(path, 4096).decode('utf-8-sig', 'replace')))]


def read_csv(reading: Reading) -> LabelledData:
    """Reads CSV files with a box in each line, in pixels, or as Open Images in shares; a UserError for other values.

    The name of a file or of a folder says the split.
    """
    data, folder = LabelledData(CSV, reading.folder.root), reading.folder
    pictures: list[Picture] = []
    splits: dict[str, list[Path]] = {}
    for path in reading.files:
        rows = _rows(read_text(path))
        columns = _columns(rows)
        if not columns:
            raise UserError(f'{path} has no columns of boxes ({", ".join(map(str, HEADINGS))}): correct its headings.')
        rows = rows[1:] if columns == _headings(rows[0]) else rows
        data.account.read((one for one in columns if one not in HEADINGS), (*KNOWN, 'x', 'y', 'w', 'h'))
        records = [dict(zip(columns, row, strict=False)) for row in rows]
        for one in records:  # names of Open Images have no suffix
            one['image'] = folder.full_name(one.get('image', ''))
        texts = dict.fromkeys(one['image'] for one in records)
        places = folder.match(sorted(texts), path, path.parent)
        own = {text: Picture(places[text], path) for text in texts if text in places}
        data.measured([*own.values()])  # boxes are clipped to their images
        data.account.seen += Counter(images=len(texts), objects=len(records))
        for number, record in enumerate(records, start=1):
            if picture := own.get(record['image']):
                _read_record(record, picture, f'{path}, object {number},', data.account)
            else:
                data.account.leave('objects', f'objects of {path.name} are of images that are not there',
                                   record['image'])
        data.account.leave_all('images', f'images of {path.name} are not there', sorted(texts.keys() - places.keys()))
        splits.setdefault(split_in(path.stem) or split_of(path, folder.root), []).extend(
            one.path for one in own.values())
        pictures += own.values()
    return complete(data, there(one_of_each(pictures, data.account), reading), folder,
                    splits if len(splits) > 1 else {})


def _read_record(record: Row, picture: Picture, where: str, account: Account) -> None:
    picture.stated = size_of(record.get('width'), record.get('height'), where)
    if shape := record.get('shape'):
        keys, name = _of_via(shape, record.get('attributes', ''), picture.size, where)
    elif not any(record.get(key, '').strip() for key in (*CORNERS, 'x')):
        account.leave('objects', 'lines have an image without an object', picture.path.name)
        return
    else:
        keys, name = _box(record, picture.size, where, account), record.get('name', '')
    if keys is None:
        account.leave('objects', 'objects have no area', where)
    else:
        picture.objects.append(LabelledObject(name.strip(), keys))


def _box(record: Row, size: tuple[int, int], where: str, account: Account) -> dict[str, Any]:
    if 'x' in record:  # of makesense
        left, top, width, height = (number_of(record.get(key), where, key) for key in 'xywh')
        return box(left, top, left + width, top + height, size)
    left, top, right, bottom = ordered((number_of(record.get(key), where, key) for key in CORNERS), account, where)
    if max(map(abs, (left, top, right, bottom))) <= 1:  # of Open Images
        left, right, top, bottom = left * size[0], right * size[0], top * size[1], bottom * size[1]
    return box(left, top, right, bottom, size)


def _of_via(shape: str, attributes: str, size: tuple[int, int], where: str) -> tuple[dict[str, Any] | None, str]:
    """Reads a shape of the VGG Image Annotator, and the first of its attributes, which is the class."""
    try:
        found, names = json.loads(shape), [*json.loads(attributes or '{}').values()]
        kind = found.get('name')
    except (ValueError, AttributeError) as error:
        raise UserError(f'{where} has {shown(shape)} for a shape, which is no JSON: export it again.') from error
    name = str(names[0]) if names else ''
    if kind == 'polygon':
        pairs = zip(found.get('all_points_x') or (), found.get('all_points_y') or (), strict=False)
        return polygons([points_of([*pairs], where)], size), name
    if kind not in VIA_KEYS:
        return None, name
    x, y, width, height = (number_of(found.get(key), where, key) for key in VIA_KEYS[kind])
    return box(x, y, x + width, y + height, size) if kind == 'rect' else polygons(
        [ellipse(x, y, width, height)], size), name


def _rows(text: str) -> list[list[str]]:
    return [row for row in csv.reader(text.splitlines()) if any(cell.strip() for cell in row)]


def _headings(row: list[str]) -> list[str]:
    plain = [cell.lower().translate({ord(one): None for one in ' _#'}) for cell in row]
    known = {heading: key for key, headings in HEADINGS.items() for heading in headings}
    return [known.get(cell, cell) for cell in plain]


def _columns(rows: list[list[str]]) -> list[str]:
    """Returns what the columns are, by the headings or the first lines; nothing if these are no boxes."""
    first = rows[0] if rows else []
    found = _headings(first)
    if {'image', 'name', *CORNERS} <= set(found) or {'image', 'shape'} <= set(found):
        return found
    return next(([*columns] for columns in BARE if len(first) == len(columns) and all(
        column in ('image', 'name') or _is_number(cell) for column, cell in zip(columns, first, strict=True))), [])


def _is_number(cell: str) -> bool:
    try:
        return not cell.strip() or float(cell) == float(cell)
    except ValueError:
        return False
