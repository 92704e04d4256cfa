"""Boxes in CSV files: a line for each, of TensorFlow, Keras RetinaNet, Open Images, makesense, VIA and VoTT."""
import csv
import json
from collections.abc import Iterator, Sequence
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
    group=('isgroupof',),
    shape=('regionshapeattributes',), attributes=('regionattributes',))
# Headings that say nothing about boxes: those of Open Images and VIA.
KNOWN = frozenset(('source', 'confidence', 'isoccluded', 'istruncated', 'isdepiction', 'isinside', 'filesize',
                   'fileattributes', 'regioncount', 'regionid'))
CORNERS = ('left', 'top', 'right', 'bottom')
# Columns of files without headings: of Keras RetinaNet, and of makesense. All but two are numbers.
BARE = (('image', *CORNERS, 'name'), ('name', 'x', 'y', 'w', 'h', 'image', 'width', 'height'))
VIA_KEYS = dict(rect=('x', 'y', 'width', 'height'), circle=('cx', 'cy', 'r', 'r'), ellipse=('cx', 'cy', 'rx', 'ry'))

MOST_SHARE = 2  # no coordinate in shares of the image is larger, and no file in pixels has only smaller ones

Row = dict[str, str]


class Cells(list[str]):
    """The cells of a line."""

    def __init__(self, cells: list[str], number: int) -> None:
        super().__init__(cells)
        self.number = number  # of the line, from 1 on


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
    by_image: dict[str, list[tuple[str, Row]]] = {}
    for row in rows:
        if any(cell.strip() for cell in row[len(columns):]):
            raise UserError(f'{path} has {len(row)} cells in line {row.number}, but {len(columns)} columns: if numbers '
                            'have a decimal comma, write a point, or put texts with commas into quotes.')
        record = dict(zip(columns, row, strict=False))
        by_image.setdefault(record.get('image', ''), []).append((f'{path}, line {row.number},', record))
    in_shares = _are_shares([pair for pairs in by_image.values() for pair in pairs])
    split = split_in(path.stem) or split_of(path, folder.root)
    for text, records in by_image.items():
        found = [_found(record, where, in_shares) for where, record in records]
        where, last = records[-1]
        size = size_of(last.get('width'), last.get('height'), where)
        yield Record(f'{path}, {text}', [text], found, size, split)


def _are_shares(records: Sequence[tuple[str, Row]]) -> bool:
    """Returns whether all corners are shares of the image, as those of Open Images; else they are pixels.

    Raises:
        UserError: If most corners are shares, but others cannot be.
    """
    most = [(max(abs(number_of(record.get(key), where, key)) for key in CORNERS), where) for where, record in records
            if all(record.get(key, '').strip() for key in CORNERS)]
    largest = max(most, default=(0., ''))
    shares = sum(one <= 1 for one, _ in most)
    if largest[0] > MOST_SHARE and 2 * shares > len(most):
        raise UserError(f'{largest[1]} has a coordinate of {largest[0]:g}, but {shares} of {len(most)} lines have only '
                        'shares of the image, from 0 to 1: write all in one unit.')
    return bool(most) and largest[0] <= MOST_SHARE


def _found(record: Row, where: str, in_shares: bool) -> Found:
    if text := record.get('shape'):
        shape, name = _of_via(text, record.get('attributes', ''), where)
        return Found(name, shape, left='' if shape else 'objects have no area')
    if not any(record.get(key, '').strip() for key in (*CORNERS, 'x')):
        return Found(left='lines have an image without an object')
    return Found(record.get('name', ''), _box(record, where, in_shares),
                 ignored='objects are groups (IsGroupOf)' * (record.get('group', '').strip() == '1'))


def _box(record: Row, where: str, in_shares: bool) -> Shape:
    if 'x' in record:  # of makesense
        left, top, width, height = (number_of(record.get(key), where, key) for key in 'xywh')
        return Shape((left, top, left + width, top + height))
    return Shape([number_of(record.get(key), where, key) for key in CORNERS], in_shares=in_shares)


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


def _rows(text: str) -> list[Cells]:
    reader = csv.reader(text.splitlines())
    return [Cells(row, reader.line_num) for row in reader if any(cell.strip() for cell in row)]


def _headings(row: list[str]) -> list[str]:
    plain = [cell.lower().translate({ord(one): None for one in ' _#'}) for cell in row]
    known = {heading: key for key, headings in HEADINGS.items() for heading in headings}
    return [known.get(cell, cell) for cell in plain]


def _columns(rows: Sequence[list[str]]) -> list[str]:
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
