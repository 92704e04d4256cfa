"""Reads annotation files in COCO's layout: checks the type and size of each value, and notes what mmdet cannot read."""
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from mmengine.fileio import get

from openmmlab_tools.errors import FileFault, first_line
from openmmlab_tools.files import what_is
from openmmlab_tools.pictures.masks import area_of
from openmmlab_tools.texts import shown

from .findings import WRITE_ANEW

# The most pixels of a side and of an image that OpenCV decodes.
MAX_SIDE, MAX_PIXELS = 1 << 20, 1 << 30
MAX_COORDINATE = 2 * MAX_SIDE
NOT_COCO = ("but ann_file must be a JSON file in COCO's layout: let the command new-config write a config for the "
            'folder, which may hold Pascal VOC')
PACKED = {b'\x1f\x8b': 'gzip', b'PK\x03\x04': 'zip', b'\xfd7zXZ': 'xz', b'BZh': 'bzip2'}

Entry = dict[str, Any]


class Coco(dict[str, list[Entry]]):
    """The `images`, `categories` and `annotations` of a file."""

    def __init__(self, content: dict[str, list[Entry]] = {}) -> None:
        super().__init__(content)
        # A sentence on what mmdet could not read, and how many there are, by kind.
        self.repaired: dict[tuple[str, ...], tuple[str, int]] = {}
        # For each list and key, the ids that are text in the file and numbers here, by the index of the entry.
        self.texts: dict[tuple[str, str], dict[int, str]] = {}

    def repair(self, kind: tuple[str, ...], sentence: str) -> None:
        first, number = self.repaired.get(kind, (sentence, 0))
        self.repaired[kind] = first, number + 1

    @property
    def repairs(self) -> list[str]:
        return [first + f' (and {number - 1} more)' * (number > 1) for first, number in self.repaired.values()]


def read_coco(file: str, backend_args: dict[str, Any] | None = None, needs_sizes: bool = True) -> Coco:
    """Reads an annotation file.

    Numbers that are written as text become numbers, also ids (see `to_id`), names of categories become text, a missing
    `iscrowd` becomes 0, and a missing `area` becomes the area of the mask or box. null is like a missing value.

    Images then have `id`, `file_name`, `width` and `height`, categories `id` and `name`, annotations `id`, `image_id`,
    `category_id`, `bbox`, `area` and `iscrowd`; all keep their other keys. `segmentation` is not checked.
    `annotations` is empty if the file has none, as for a test set.

    Raises a FileFault if the file has another layout, or an image has no size. A caller that adds sizes itself sets
    `needs_sizes` to False.
    """
    raw, encoding = _read_lists(file, backend_args)
    if any(isinstance(entry, dict) and 'segments_info' in entry for entry in _listed(raw, 'annotations')[:1]):
        raise FileFault(file, 'has panoptic annotations (segments_info), which only a CocoPanopticDataset reads: '
                        "name the file with the objects, such as COCO's instances_val2017.json, or let the command "
                        'new-config write one')
    return _checked(file, raw, encoding, needs_sizes)


def read_panoptic(file: str, backend_args: dict[str, Any] | None = None) -> Coco:
    """Reads a panoptic annotation file as `read_coco` does others: each segment is an annotation.

    COCO's annotations there have no `id`, and ids of segments are only different in an image, so the id of a segment is
    `<id of the image>/<id of the segment>`. The PNG files are not read.
    """
    raw, encoding = _read_lists(file, backend_args)
    segments = []
    for index, entry in enumerate(_listed(raw, 'annotations')):
        where = f'in annotations[{index}]'
        if not isinstance(entry, dict) or not isinstance(entry.get('segments_info'), list):
            raise FileFault(file, f'has no segments_info {where}, but a CocoPanopticDataset reads panoptic '
                            "annotations: name a file such as COCO's panoptic_val2017.json")
        for key in ('image_id', 'file_name'):
            if key not in entry:
                raise FileFault(file, f'has no {key!r} {where}: add it')
        for segment in entry['segments_info']:
            if not isinstance(segment, dict) or 'id' not in segment:
                raise FileFault(file, f'has a segment without id {where}: add it')
            segments.append({**segment, 'image_id': entry['image_id'], 'id': f'{entry["image_id"]}/{segment["id"]}'})
    for index, category in enumerate(_listed(raw, 'categories')):
        if isinstance(category, dict) and category.get('isthing') not in (0, 1):
            raise FileFault(file, f'has isthing={shown(category.get("isthing"))} in categories[{index}], but it is '
                            '1 for objects and 0 for stuff: correct it')
    return _checked(file, {**raw, 'annotations': segments}, encoding, needs_sizes=True)


def image_ids(file: str, backend_args: dict[str, Any] | None = None) -> list[int | str]:
    """Returns the ids of the images of an annotation file, panoptic or not, in their order."""
    images = _listed(_read_lists(file, backend_args)[0], 'images')
    try:
        return [to_id(image['id']) for image in images]
    except (KeyError, TypeError, ValueError) as error:
        raise FileFault(file, 'has an image without a valid id: correct it') from error


def _listed(raw: dict[str, Any], name: str) -> list[Any]:
    return raw[name] if isinstance(raw.get(name), list) else []


def _read_lists(file: str, backend_args: dict[str, Any] | None) -> tuple[dict[str, Any], str]:
    """Returns the content of an annotation file, with images and categories, and its encoding."""
    kind = '' if '://' in file else what_is(file)
    if kind == 'is a folder':
        raise FileFault(file, f'{kind}, {NOT_COCO}')
    if kind.endswith('not a file'):  # who opens it may wait for ever
        raise FileFault(file, f"{kind}: put a file in COCO's layout there")
    raw, encoding = parse_json(file, get(file, backend_args=backend_args))
    missing = [key for key in ('images', 'categories') if not isinstance(raw, dict) or not raw.get(key)]
    if missing:
        raise FileFault(file, f'has no {" and no ".join(missing)}: put a file in COCO\'s layout there')
    raw.setdefault('annotations', [])
    return raw, encoding


def _checked(file: str, raw: dict[str, Any], encoding: str, needs_sizes: bool) -> Coco:
    """Checks and converts the entries of the lists."""
    coco = Coco()
    if encoding != 'utf-8':
        coco.repair(('encoding',), f'is {encoding.replace("-sig", " with a byte order mark")} instead of utf-8')
    for name in FIELDS:
        coco[name] = raw[name]
        _read_entries(file, name, coco, needs_sizes)
    for key, name in (('image_id', 'images'), ('category_id', 'categories')):
        _note_references(key, name, coco)
    return coco


def read_json(path: Path) -> Any:
    """Reads a file of JSON; raises a FileFault if it is not JSON."""
    return parse_json(str(path), path.read_bytes())[0]


def parse_json(file: str, content: bytes) -> tuple[Any, str]:
    """Returns the content of a JSON file called `file`, and its encoding; raises a FileFault if it is not JSON."""
    if content.lstrip().startswith(b'<'):
        raise FileFault(file, f'is XML, {NOT_COCO}')
    if not content.strip():
        raise FileFault(file, f'is empty ({len(content)} bytes): put the whole file there')
    if packed := next((name for head, name in PACKED.items() if content.startswith(head)), ''):
        raise FileFault(file, f'is packed ({packed}): unpack it')
    encoding = json.detect_encoding(content)
    try:
        return json.loads(content.decode(encoding)), encoding
    except RecursionError as error:
        raise FileFault(file, 'has lists or dicts too deep inside others: put another export there') from error
    except UnicodeDecodeError as error:
        line = content.count(b'\n', 0, error.start) + 1
        raise FileFault(file, f'is not {encoding} in line {line}: save it as UTF-8') from error
    except ValueError as error:
        raise FileFault(file, f'is not JSON ({first_line(error)}): put the whole file there') from error


def to_id(value: Any) -> int | str:
    """Returns a whole number, also for a float or text such as '12', or else a text; a ValueError for no id."""
    if isinstance(value, str) and value:
        return int(value) if re.fullmatch('0|-?[1-9][0-9]{0,17}', value) else value
    if type(value) in (int, float) and value % 1 == 0 and abs(value) < 1 << 63:
        return int(value)
    raise ValueError


def _number(value: Any) -> float:
    if isinstance(value, str) and re.fullmatch(r'\s*[-+]?[0-9]*\.?[0-9]+\.?([eE][-+]?[0-9]{1,3})?\s*', value):
        value = float(value)
        value = int(value) if value.is_integer() else value
    if type(value) not in (int, float) or not abs(value) < 1e300:  # also not a number, and infinity
        raise ValueError
    return value


def _side(value: Any) -> int:
    number = _number(value)
    if number != int(number) or not 1 <= number <= MAX_SIDE:
        raise ValueError
    return int(number)


def _box(value: Any) -> list[float]:
    box = [_number(number) for number in value] if isinstance(value, list) else []
    if len(box) != 4 or max(map(abs, box)) > MAX_COORDINATE:
        raise ValueError
    return box


def _flag(value: Any) -> int:
    return int(value if isinstance(value, bool) else _number(value) != 0)


def _file_name(value: Any) -> str:
    # os.fsencode fails for half characters, and for those that the system's encoding lacks.
    if not isinstance(value, str) or not value or '\0' in value or any(
            len(os.fsencode(part)) > 255 for part in value.split('/')) or len(value) > 4000:
        raise ValueError
    return value


def _name(value: Any) -> str:
    name = value if isinstance(value, str) else str(to_id(value) if _number(value) == int(value) else value)
    name.encode()  # fails for half characters
    return name


def _mask(value: Any) -> Any:
    """Returns a mask whose polygons have numbers instead of text; leaves anything else to the checks of masks."""
    if isinstance(value, list) and value and isinstance(value[0], list) and value[0] and isinstance(value[0][0], str):
        return [[_number(number) for number in polygon] for polygon in value if isinstance(polygon, list)]
    return value


# The keys that are read from each entry, and the types of their values.
# With an ASCII locale, Python can name no other files.
CODEC = sys.getfilesystemencoding()
FILE_NAME = 'the name of a file that can exist' + ('' if 'utf' in CODEC else f' in {CODEC} (PYTHONUTF8=1 allows more)')
ID = (to_id, 'a whole number or text')
SIDE = (_side, f'a whole number from 1 to {MAX_SIDE}')
FIELDS: dict[str, dict[str, tuple[Callable[[Any], Any], str]]] = dict(
    images=dict(id=ID, file_name=(_file_name, FILE_NAME), width=SIDE, height=SIDE),
    categories=dict(id=ID, name=(_name, 'text without halves of surrogate pairs')),
    annotations=dict(
        id=ID, image_id=ID, category_id=ID,
        bbox=(_box, f'four numbers (x, y, width, height) of at most {MAX_COORDINATE}'),
        segmentation=(_mask, 'a list of polygons [x, y, x, y, ...], or a run-length encoding'),
        area=(_number, 'a number'), iscrowd=(_flag, '0 or 1'), ignore=(_flag, '0 or 1')))
OPTIONAL = ('segmentation', 'ignore')


def _read_entries(file: str, name: str, coco: Coco, needs_sizes: bool) -> None:
    """Converts the entries of a list in place."""
    if not isinstance(coco[name], list):
        raise FileFault(file, f'has {name}={shown(coco[name])}, but {name} is a list: correct it')
    for index, entry in enumerate(coco[name]):
        where = f'in {name}[{index}]'
        if not isinstance(entry, dict):
            raise FileFault(file, f'has {shown(entry)} {where}, but an entry has keys and values, such as "id": 1: '
                            'correct it')
        if not needs_sizes and name == 'images' and any(
                entry.get(key) in (None, 0, '', '0') for key in ('width', 'height')):
            entry.update(width=None, height=None)
            coco.repair(('images', 'size'), f'has no width or height {where}')
        for key, (parse, requirement) in FIELDS[name].items():
            value = entry.get(key)
            if value is None:
                _complete(file, entry, key, where, coco, needs_sizes)
                continue
            try:
                entry[key] = new = parse(value)
            except (ValueError, OverflowError, RecursionError) as error:
                raise FileFault(file, f'has {key}={shown(value)} {where}, but {key} is {requirement}: '
                                'correct it') from error
            if new != value and parse is to_id:
                coco.texts.setdefault((name, key), {})[index] = value
            elif new != value:
                coco.repair((name, key), f'has {key}={shown(value)} {where} instead of {shown(new)}')
        if entry.get('width') and entry['width'] * entry['height'] > MAX_PIXELS:
            raise FileFault(file, f'has width={entry["width"]} and height={entry["height"]} {where}, but OpenCV '
                            f'reads images of at most {MAX_PIXELS} pixels: correct it')


def _complete(file: str, entry: Entry, key: str, where: str, coco: Coco, needs_sizes: bool) -> None:
    if key == 'iscrowd':
        entry[key] = 0
    elif key == 'file_name' and isinstance(entry.get('coco_url'), str):  # of LVIS 1.0
        entry[key] = urlparse(entry['coco_url']).path.lstrip('/')
        coco.repair(('images', key), f'has no file_name {where}, so it is the end of coco_url')
    elif key == 'area':
        area = area_of(entry.get('segmentation'))
        entry[key] = entry['bbox'][2] * entry['bbox'][3] if area is None else area
        coco.repair(('annotations', key), f'has no area {where}')
    elif key in ('width', 'height') and not needs_sizes:
        entry.pop(key, None)
    elif key not in OPTIONAL:
        advice = f', or {WRITE_ANEW}' if key in ('width', 'height') else ''
        raise FileFault(file, f'has no {key!r} {where}: add it{advice}')


def _note_references(key: str, name: str, coco: Coco) -> None:
    """Notes ids that are text in one place and numbers in the other, so that mmdet does not find them."""
    ids, references = coco.texts.get((name, 'id'), {}), coco.texts.get(('annotations', key), {})
    if not ids and not references:
        return
    written = {ids.get(index, entry['id']) for index, entry in enumerate(coco[name])}
    known = {entry['id'] for entry in coco[name]}
    for index, annotation in enumerate(coco['annotations']):
        old = references.get(index, annotation[key])
        if old not in written and annotation[key] in known:
            coco.repair(('annotations', key), f'has {key}={shown(old)} in annotations[{index}], but the id is written '
                        f'otherwise in {name}')
