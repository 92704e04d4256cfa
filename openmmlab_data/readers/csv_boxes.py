"""Boxes in CSV files: a line for each, of TensorFlow, Keras RetinaNet, Open Images, makesense, VIA and VoTT."""
import csv
import json
from collections.abc import Iterator
from pathlib import Path

from openmmlab_data.form.account import Account
from openmmlab_data.form.dataset import LabelledData
from openmmlab_data.form.folder import Folder, head, read_text, split_in
from openmmlab_data.form.objects import Shape, ellipse, number_of, points_of, size_of
from openmmlab_data.form.records import Found, Record, read_many
from openmmlab_data.form.splits import split_of
from openmmlab_runs.errors import UserError
from openmmlab_runs.texts import shown

from .layouts import CSV, Reading

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
    return read_many(reading.files, data, folder, lambda path, account: _records(path, folder, account))


def _records(path: Path, folder: Folder, account: Account) -> Iterator[Record]:
    rows = _rows(read_text(path))
    columns = _columns(rows)
    if not columns:
        raise UserError(f'{path} has no columns of boxes ({", ".join(map(str, HEADINGS))}): correct its headings.')
    rows = rows[1:] if columns == _headings(rows[0]) else rows
    account.read((one for one in columns if one not in HEADINGS), (*KNOWN, 'x', 'y', 'w', 'h'))
    by_image: dict[str, list[tuple[int, Row]]] = {}
    for number, record in enumerate((dict(zip(columns, row, strict=False)) for row in rows), start=1):
        by_image.setdefault(record.get('image', ''), []).append((number, record))
    split = split_in(path.stem) or split_of(path, folder.root)
    for text, records in by_image.items():
        found = [_found(record, f'{path}, object {number},') for number, record in records]
        number, last = records[-1]
        size = size_of(last.get('width'), last.get('height'), f'{path}, object {number},')
        yield Record(f'{path}, {text}', [text], found, size, split)


def _found(record: Row, where: str) -> Found:
    if text := record.get('shape'):
        shape, name = _of_via(text, record.get('attributes', ''), where)
        return Found(name, shape, left='' if shape else 'objects have no area')
    if not any(record.get(key, '').strip() for key in (*CORNERS, 'x')):
        return Found(left='lines have an image without an object')
    return Found(record.get('name', ''), _box(record, where))


def _box(record: Row, where: str) -> Shape:
    if 'x' in record:  # of makesense
        left, top, width, height = (number_of(record.get(key), where, key) for key in 'xywh')
        return Shape((left, top, left + width, top + height))
    corners = [number_of(record.get(key), where, key) for key in CORNERS]
    return Shape(corners, in_shares=max(map(abs, corners)) <= 1)  # of Open Images


def _of_via(text: str, attributes: str, where: str) -> tuple[Shape | None, str]:
    """Reads a shape of the VGG Image Annotator, and the first of its attributes, which is the class."""
    try:
        found, names = json.loads(text), [*json.loads(attributes or '{}').values()]
        kind = found.get('name')
    except (ValueError, AttributeError) as error:
        raise UserError(f'{where} has {shown(text)} for a shape, which is no JSON: export it again.') from error
    name = str(names[0]) if names else ''
    if kind == 'polygon':
        pairs = zip(found.get('all_points_x') or (), found.get('all_points_y') or (), strict=False)
        return Shape(parts=[points_of([*pairs], where)]), name
    if kind not in VIA_KEYS:
        return None, name
    x, y, width, height = (number_of(found.get(key), where, key) for key in VIA_KEYS[kind])
    return Shape((x, y, x + width, y + height)) if kind == 'rect' else Shape(parts=[ellipse(x, y, width, height)]), name


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
