"""Boxes in CSV files: a line for each, of TensorFlow, Keras RetinaNet, Open Images, makesense, VIA and VoTT."""
import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from openmmlab_tools.errors import FileFault, UserError
from openmmlab_tools.files import IMAGE_SUFFIXES
from openmmlab_tools.readers.form.account import Account
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.form.folder import Folder, head, read_text, split_in
from openmmlab_tools.readers.form.objects import Shape, ellipse, number_of, points_of, size_of
from openmmlab_tools.readers.form.records import Record, RecordObject, read_many
from openmmlab_tools.readers.form.splits import split_of
from openmmlab_tools.texts import shown, some

from .layouts import CSV, Reading
from .tools import LINES, text_of

# The columns that are read, and their possible headings, in lower case without blanks, points and underscores. The
# headings may begin with `bbox`, `box` or `roi`: then x, y, width and height describe the box.
HEADINGS = dict(
    image=('filename', 'image', 'imageid', 'imagename', 'imagepath', 'imagefile', 'imagefilename', 'file', 'filepath',
           'path', 'location', 'frame', 'img', 'imgname', 'imgpath'),
    name=('class', 'label', 'labelname', 'classname', 'classlabel', 'category', 'categoryname', 'name', 'tag',
          'annotationtag', 'objectclass', 'classid'),
    left=('xmin', 'x1', 'left', 'xtl', 'minx', 'upperleftcornerx'),
    top=('ymin', 'y1', 'top', 'ytl', 'miny', 'upperleftcornery'),
    right=('xmax', 'x2', 'right', 'xbr', 'maxx', 'lowerrightcornerx'),
    bottom=('ymax', 'y2', 'bottom', 'ybr', 'maxy', 'lowerrightcornery'),
    width=('width', 'imagewidth', 'imgwidth'), height=('height', 'imageheight', 'imgheight'),
    group=('isgroupof',),
    shape=('regionshapeattributes',), attributes=('regionattributes',))
BOX_WORD = re.compile(r'^(bndbox|bbox|box|roi)')
OF_BOX = dict(x='left', y='top', w='w', h='h', width='w', height='h')  # headings after `BOX_WORD`
# Headings in files of Open Images and VIA that are not about boxes.
KNOWN = frozenset(('source', 'confidence', 'isoccluded', 'istruncated', 'isdepiction', 'isinside', 'filesize',
                   'fileattributes', 'regioncount', 'regionid'))
ASKED = ('filename', 'class', 'xmin', 'ymin', 'xmax', 'ymax')  # what the headings should be
CORNERS = ('left', 'top', 'right', 'bottom')
# Columns in files without headings: Keras RetinaNet, makesense and SKU-110K. The image is a file name with a suffix,
# the class is a text, and all other columns are numbers.
BARE = (('image', *CORNERS, 'name'), ('name', 'left', 'top', 'w', 'h', 'image', 'width', 'height'),
        ('image', *CORNERS, 'name', 'width', 'height'))
SUFFIXES, DELIMITERS = ('.csv', '.tsv', '.txt'), ',;\t|'
FOUR_NUMBERS = re.compile(r'[\[({ ]*-?\d+(\.\d+)?([,; ]+-?\d+(\.\d+)?){3}')
VIA_KEYS = dict(rect=('x', 'y', 'width', 'height'), circle=('cx', 'cy', 'r', 'r'), ellipse=('cx', 'cy', 'rx', 'ry'))

MOST_SHARE = 2  # fractions of the image are smaller, and each file in pixels has larger coordinates

Row = dict[str, str]


class Cells(list[str]):
    """The cells of a line."""

    def __init__(self, cells: list[str], number: int) -> None:
        super().__init__(cells)
        self.number = number  # of the line, from 1 on


class Table(NamedTuple):
    """The lines of a file, and what its columns are; none if it has no boxes."""
    columns: list[str]
    rows: list[Cells]  # with headings, if there are any


def find_csv(folder: Folder) -> list[Path]:
    """Returns files with a box in each line, by their first lines."""
    return [path for path in folder.with_suffix(*SUFFIXES)
            if not (path.suffix.lower() == '.txt' and folder.image_of(path))
            and _table(text_of(head(path, LINES))).columns]


def name_columns(folder: Folder) -> str | None:
    """Returns a clause with a file whose columns look like boxes, but are not read, and with what to do."""
    for path in folder.with_suffix('.csv', '.tsv'):
        text = text_of(head(path, LINES))
        rows = max((_rows(text, delimiter) for delimiter in DELIMITERS), key=lambda rows: len(rows[0]) if rows else 0)
        columns = _headings(rows[0]) if rows else []
        advice = f'write columns with the headings {", ".join(ASKED)}'
        if cell := next((cell for row in rows[:3] for cell in row if FOUR_NUMBERS.match(cell)), None):
            return (f'{path} has several numbers in one cell, such as {shown(cell)}, which is not read, since they may '
                    f'be corners, or a corner with width and height: {advice}')
        if {'x', 'y'} <= {*columns}:
            return (f'{path} has columns x and y, which are not read, since they may be a corner or the centre: '
                    f'{advice}')
        if 'image' in columns or {'left', 'top'} <= {*columns}:
            keys = dict(zip(('image', 'name', *CORNERS), ASKED, strict=True))
            missing = [asked for key, asked in keys.items() if key not in columns]
            return (f'{path} has the columns {some(rows[0], 10)}, which are not read, since none is known for '
                    f'{", ".join(missing)}: {advice}')
    return None


def read_csv(reading: Reading) -> LabelledData:
    """Reads CSV files with a box in each line, in pixels, or as Open Images in shares; a UserError for other values.

    The name of a file or of a folder says the split.
    """
    data, folder = LabelledData(CSV, reading.folder.root), reading.folder
    return read_many(reading.files, data, folder, lambda path, account: _records(path, folder, account))


def _records(path: Path, folder: Folder, account: Account) -> Iterator[Record]:
    columns, rows = _table(read_text(path))
    if not columns:
        raise FileFault(path, f'has no columns of boxes ({", ".join(map(str, HEADINGS))}): correct its headings')
    rows = rows[1:] if columns == _columns_of_headings(rows[0]) else rows
    account.read((column for column in columns if column not in HEADINGS), (*KNOWN, 'w', 'h'))
    by_image: dict[str, list[tuple[str, Row]]] = {}
    for row in rows:
        if any(cell.strip() for cell in row[len(columns):]):
            raise FileFault(path, f'has {len(row)} cells in line {row.number}, but {len(columns)} columns: if numbers '
                            'have a decimal comma, write a point, or put texts with commas into quotes')
        record = dict(zip(columns, row, strict=False))
        by_image.setdefault(record.get('image', ''), []).append((f'{path}, line {row.number},', record))
    in_shares = _are_shares([pair for pairs in by_image.values() for pair in pairs])
    split = split_in(path.stem) or split_of(path, folder.root)
    for text, records in by_image.items():
        objects = [_record_object(record, where, in_shares) for where, record in records]
        where, last = records[-1]
        size = size_of(last.get('width'), last.get('height'), where)
        yield Record(f'{path}, {text}', [text], objects, size, split)


def _are_shares(records: Sequence[tuple[str, Row]]) -> bool:
    """Returns whether all corners are shares of the image, as in Open Images. Otherwise, they are pixels.

    Raises:
        UserError: If most corners are shares, but others cannot be.
    """
    most = [(max(abs(number_of(record.get(key), where, key)) for key in CORNERS), where) for where, record in records
            if all(record.get(key, '').strip() for key in CORNERS)]
    largest = max(most, default=(0., ''))
    shares = sum(coordinate <= 1 for coordinate, _ in most)
    if largest[0] > MOST_SHARE and 2 * shares > len(most):
        raise UserError(f'{largest[1]} has a coordinate of {largest[0]:g}, but {shares} of {len(most)} lines have only '
                        'fractions of the image, from 0 to 1: use pixels in all lines, or fractions in all lines.')
    return bool(most) and largest[0] <= MOST_SHARE


def _record_object(record: Row, where: str, in_shares: bool) -> RecordObject:
    if text := record.get('shape'):
        shape, name = _of_via(text, record.get('attributes', ''), where)
        return RecordObject(name, shape, left='' if shape else 'objects have no area')
    if not any(record.get(key, '').strip() for key in (*CORNERS, 'w')):
        return RecordObject(left='lines have an image without an object')
    return RecordObject(record.get('name', ''), _box(record, where, in_shares),
                 ignored='objects are groups (IsGroupOf)' * (record.get('group', '').strip() == '1'))


def _box(record: Row, where: str, in_shares: bool) -> Shape:
    if 'w' in record:
        left, top, width, height = (number_of(record.get(key), where, key) for key in ('left', 'top', 'w', 'h'))
        return Shape((left, top, left + width, top + height))
    return Shape([number_of(record.get(key), where, key) for key in CORNERS], in_shares=in_shares)


def _of_via(text: str, attributes: str, where: str) -> tuple[Shape | None, str]:
    """Reads a shape of the VGG Image Annotator, and the first of its attributes, which is the class."""
    try:
        shape, names = json.loads(text), [*json.loads(attributes or '{}').values()]
        kind = shape.get('name')
    except (ValueError, AttributeError) as error:
        raise UserError(f'{where} has {shown(text)} for a shape, which is no JSON: export it again.') from error
    name = str(names[0]) if names else ''
    if kind == 'polygon':
        pairs = zip(shape.get('all_points_x') or (), shape.get('all_points_y') or (), strict=False)
        return Shape(parts=[points_of([*pairs], where)]), name
    if kind not in VIA_KEYS:
        return None, name
    x, y, width, height = (number_of(shape.get(key), where, key) for key in VIA_KEYS[kind])
    return Shape((x, y, x + width, y + height)) if kind == 'rect' else Shape(parts=[ellipse(x, y, width, height)]), name


def _table(text: str) -> Table:
    """Reads a table by the delimiter with which its first line has the columns of boxes."""
    for delimiter in DELIMITERS:
        if columns := _columns(next(iter(_rows(text[:LINES], delimiter)), Cells([], 0))):
            return Table(columns, _rows(text, delimiter))
    return Table([], [])


def _rows(text: str, delimiter: str) -> list[Cells]:
    reader = csv.reader(text.splitlines(), delimiter=delimiter)
    return [Cells(row, reader.line_num) for row in reader if any(cell.strip() for cell in row)]


def _headings(row: list[str]) -> list[str]:
    known = {heading: key for key, headings in HEADINGS.items() for heading in headings}
    columns = []
    for cell in row:
        plain = re.sub(r'[ _#.-]', '', cell.lower())
        bare = BOX_WORD.sub('', plain)
        columns.append(OF_BOX.get(bare) or known.get(bare) or plain if bare != plain else known.get(plain, plain))
    return columns


def _columns_of_headings(row: list[str]) -> list[str]:
    """Returns what columns are by their headings; nothing if these are no boxes."""
    headings = _headings(row)
    if {'image', 'shape'} <= {*headings}:
        return headings
    if {'left', 'top', 'width', 'height'} <= {*headings} and {'right', 'bottom', 'w', 'h'}.isdisjoint(headings):
        headings = [{'width': 'w', 'height': 'h'}.get(heading, heading) for heading in headings]
    has_box = {*CORNERS} <= {*headings} or {'left', 'top', 'w', 'h'} <= {*headings}
    return headings if has_box and {'image', 'name'} <= {*headings} else []


def _columns(first: list[str]) -> list[str]:
    """Returns what the columns are, by the first line; nothing if these are no boxes."""
    def fits(column: str, cell: str) -> bool:
        if column == 'image':
            return Path(cell).suffix.lower() in IMAGE_SUFFIXES
        return column == 'name' or _is_number(cell)

    return _columns_of_headings(first) or next(([*columns] for columns in BARE if len(first) == len(columns) and all(
        map(fits, columns, first))), [])


def _is_number(cell: str) -> bool:
    try:
        return not cell.strip() or float(cell) == float(cell)
    except ValueError:
        return False
