"""Label maps: images whose pixels are numbers of classes, colours, or numbers of objects."""
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from openmmlab_data.form.folder import Folder, read_lines
from openmmlab_data.form.objects import mask
from openmmlab_data.form.splits import Meaning
from openmmlab_runs.data.findings import NO_IMAGE
from openmmlab_runs.errors import UserError, first_line
from openmmlab_runs.pictures.images import check_alone, pages
from openmmlab_runs.texts import some, told

LABEL_MAPS = 'label maps'
SUFFIXES = ('.png', '.tif', '.tiff', '.bmp')
NO_CLASS = 255
KINDS = ('classes', 'colours', 'instances')
TABLES = ('labelmap.txt', 'label_map.txt', '_classes.csv', 'class_dict.csv', 'class_names.txt', 'classes.txt',
          'labels.txt', 'label_colors.txt', 'label_colours.txt', 'classes.csv')
MOST_COLOURS = 64  # more colours without a table are no classes
TRIED = 200  # label maps that are looked at for objects
RGB = re.compile(r'(?<!\d)(\d{1,3})\s*[,;:\s]\s*(\d{1,3})\s*[,;:\s]\s*(\d{1,3})(?!\d)')
VALUE_FIRST = re.compile(r'(?P<value>\d{1,5})\s*[,;:\t]\s*(?P<name>.+)')
VALUE_LAST = re.compile(r'(?P<name>.+?)\s*[,;:\t]\s*(?P<value>\d{1,5})')


@dataclass(frozen=True)
class Table:
    """Classes in a file: names, perhaps with colours (r * 65536 + g * 256 + b) or values as codes."""
    path: Path
    names: list[str]
    codes: list[int] = field(default_factory=list)
    are_colours: bool = False


def find_label_maps(folder: Folder) -> list[Path]:
    """Returns images that are label maps by their names, or lie beside a JPEG of the same name."""
    photos = {path.with_suffix('') for path in folder.images if path.suffix.lower() not in SUFFIXES}
    return [path for path in folder.of(*SUFFIXES) if folder.is_label(path) or path.with_suffix('') in photos]


def read_label_map(path: Path, as_colours: bool = False) -> np.ndarray:
    """Reads a label map, `(H, W)`, int64: values, or with `as_colours` colours as r * 65536 + g * 256 + b. It raises
    HasColours if it has colours instead of values, and a UserError if it cannot be read.
    """
    try:
        with Image.open(path) as image:
            check_alone(len(pages(image)), path)
            pixels = np.asarray(image.convert('RGB') if as_colours or len(image.getbands()) > 2 else
                                image.getchannel(0) if image.mode == 'LA' else image)
    except NO_IMAGE as error:
        raise UserError(f'label map {path} cannot be read ({first_line(error)}): put the whole file there.') from error
    if pixels.ndim == 3:
        red, green, blue = pixels.astype(np.int64).transpose(2, 0, 1)
        if not as_colours and not ((red == green).all() and (green == blue).all()):
            raise HasColours(f'label map {path} has colours, but must have the number of a class at each pixel: '
                             'convert it.')
        return red << 16 | green << 8 | blue if as_colours else red
    if not (pixels % 1 == 0).all():
        raise UserError(f'label map {path} has values that are no whole numbers: convert it.')
    return pixels.astype(np.int64)


class HasColours(UserError):
    """A label map has colours instead of values."""


def understand(paths: Sequence[Path], folder: Folder, kind: str | None, colours: Path | None, want_objects: bool | None
               ) -> Meaning:
    """Finds out what the values of label maps mean.

    Args:
        paths: The label maps.
        folder: Their folder.
        kind: One of `KINDS`; None: guessed.
        colours: A file with classes and colours; None: one of `TABLES`, the nearest to the root.
        want_objects: Whether numbers of objects are wanted; None: if the values look like them.

    Raises:
        UserError: If the values have no meaning, or classes lack a name.
    """
    found = [colours] if colours else sorted(
        (path for path in folder.files if path.name.lower() in TABLES),
        key=lambda path: (len(path.parts), TABLES.index(path.name.lower())))
    table = next((one for path in found if (one := read_table(path)).names or colours), None)
    are_coloured = kind == 'colours' or bool(table and table.are_colours)
    counts = None if kind == 'colours' else _count(paths, False)
    palette: list[int] = []
    if counts is not None:
        with Image.open(paths[0]) as image:
            palette = image.getpalette() or []
    if counts is None or (are_coloured and palette):
        counts = _count(paths, True) or []
        meaning = _of_colours(sorted(set().union(*counts)), table, folder)
    elif kind == 'instances' or (kind is None and want_objects is not False and not (table and table.codes)
                                 and _look_like_objects(paths, counts)):
        name = table.names[-1] if table and len(table.names) in (1, 2) else 'object'
        return Meaning([name], are_objects=True, notes=[] if kind else [
            'Each value of a label map is one blob, and values differ from map to map: they are taken for objects of '
            f'class {name} (--masks classes says otherwise).'])
    else:
        meaning = _of_values(sorted(set().union(*counts)), table, palette, folder, kind)
    classes = meaning.codes or {index: index for index in range(len(meaning.classes))}
    return replace(meaning, pixels=[{classes[value]: number for value, number in one.items() if value in classes}
                                    for one in counts])


def _count(paths: Sequence[Path], as_colours: bool) -> list[dict[int, int]] | None:
    def count(path: Path) -> dict[int, int]:
        values, numbers = np.unique(read_label_map(path, as_colours), return_counts=True)
        return dict(zip(values.tolist(), numbers.tolist(), strict=True))

    with ThreadPoolExecutor() as threads:
        try:
            return list(threads.map(count, paths))
        except HasColours:
            return None


def _of_colours(found: list[int], table: Table | None, folder: Folder) -> Meaning:
    if table and table.are_colours:
        unknown = [_rgb(code) for code in found if code not in table.codes]
        return Meaning(table.names, {code: index for index, code in enumerate(table.codes)}, True,
                       [_rgb(code) for code in table.codes], notes=told(
                           unknown, f'colours of label maps are not in {table.path.name}', ': they mean no class.'))
    if len(found) > MOST_COLOURS:
        raise UserError(f'{folder.root} has label maps with {len(found)} colours, and no table of them: name one with '
                        '--colours, with a name and three numbers in each line.')
    names = table.names if table and len(table.names) == len(found) else [
        f'colour_{"_".join(map(str, _rgb(code)))}' for code in found]
    codes = {code: index for index, code in enumerate(found)}
    return Meaning(names, codes, True, [_rgb(code) for code in found], notes=[
        f'Each of the {len(found)} colours of the label maps is taken for a class: name them in a file for --colours, '
        'with a name and three numbers in each line.'])


def _of_values(values: list[int], table: Table | None, palette: list[int], folder: Folder, kind: str | None) -> Meaning:
    """Returns the meaning of values: numbers of classes, or a few values that stand for them."""
    names = table.names if table else []
    if table and table.codes and not table.are_colours:
        unknown = [value for value in values if value not in table.codes and value != NO_CLASS]
        return Meaning(names, {code: index for index, code in enumerate(table.codes)}, notes=told(
            unknown, f'values of label maps are not in {table.path.name}', ': they mean no class.'))
    foreground = max(values, default=0)
    if kind is None and len(values) == 2 and values[0] == 0 and foreground > 1 and len(names) in (0, 1, 2):
        names = names if len(names) == 2 else ['background', *(names or ['foreground'])]
        return Meaning(names, {0: 0, foreground: 1}, notes=[
            f'Label maps have 0 and {foreground}, which are taken for {names[0]} and {names[1]} (--masks classes says '
            'otherwise).'])
    classes = [value for value in values if value != NO_CLASS]
    number = max(classes, default=-1) + 1
    if kind is None and not names and 2 <= len(classes) <= number / 2 and number > 21:
        return Meaning([f'value_{value}' for value in classes], {value: index for index, value in enumerate(classes)},
                       notes=[f'The values {", ".join(map(str, classes))} of the label maps are taken for '
                              f'{len(classes)} classes (--masks classes says otherwise).'])
    if not 2 <= number <= NO_CLASS or values[0] < 0 or (kind is None and not names and len(classes) > MOST_COLOURS):
        raise UserError(f'{folder.root} has label maps with the values {some(list(map(str, classes)))} and perhaps '
                        '255, but classes are 0 to 254, at least two, and 255 means no class: correct the label maps, '
                        'or say with --masks instances that they are numbers of objects.')
    if table and len(names) < number:
        raise UserError(f'{table.path} has {len(names)} names, but label maps have {number} classes: add the others.')
    names = names or [f'class_{index}' for index in range(number)]
    if table and table.are_colours:
        return Meaning(names, palette=[_rgb(code) for code in table.codes])
    colours: list[tuple[int, ...]] = [tuple(palette[3 * index:3 * index + 3]) for index in range(len(names))]
    return Meaning(names, palette=colours if len(palette) >= 3 * len(names) else [])


def _look_like_objects(paths: Sequence[Path], counts: Sequence[dict[int, int]]) -> bool:
    """Returns whether values count from 1 in each map, end at different numbers, and are a blob each."""
    highest, single, total = set(), 0, 0
    for path, found in list(zip(paths, counts, strict=True))[:TRIED]:
        own = sorted(value for value in found if value not in (0, NO_CLASS))
        if not own:
            continue
        if own[0] != 1 or own[-1] != len(own) or len(own) > NO_CLASS:
            return False
        highest.add(len(own))
        labels = read_label_map(path)
        blobs = [cv2.connectedComponents((labels == value).astype(np.uint8))[0] - 1 for value in own]
        single, total = single + blobs.count(1), total + len(own)
    return len(highest) > 1 and single >= 0.9 * total


def objects_of(path: Path, name: str) -> list[tuple[str, dict]]:
    labels = read_label_map(path)
    return [(name, mask(labels == value)) for value in np.unique(labels) if value not in (0, NO_CLASS)]


def to_classes(path: Path, meaning: Meaning) -> np.ndarray:
    """Reads a label map of other values, or of colours, as classes, `(H, W)`, uint8; 255 where there is none."""
    labels = read_label_map(path, meaning.are_colours)
    if not meaning.codes:
        return labels.astype(np.uint8)
    known = np.array(sorted(meaning.codes))
    classes = np.array([meaning.codes[code] for code in known.tolist()], np.uint8)
    index = np.searchsorted(known, labels).clip(max=len(known) - 1)
    return np.where(known[index] == labels, classes[index], np.uint8(NO_CLASS))


def read_table(path: Path) -> Table:
    """Reads classes: in each line a name, perhaps with a colour as three numbers, or with the value of its pixels.
    Lines that begin with `#`, and headings of CSV files, are left out. A UserError if the file is no text.
    """
    if not path.is_file():
        raise UserError(f'{path} is no file: name a table of classes and colours.')
    lines = [line for line in read_lines(path) if not line.startswith('#')]
    if len(lines) > 1 and not re.search(r'\d', lines[0]) and all(re.search(r'\d', line) for line in lines[1:]):
        lines = lines[1:]  # the heading of a CSV file
    rgb = [match for line in lines if (match := RGB.search(line))]
    valued = [match for line in lines if (match := VALUE_FIRST.fullmatch(line) or VALUE_LAST.fullmatch(line))]
    if not lines or len(lines) not in (len(rgb), len(valued)):
        return Table(path, lines)
    are_colours = len(rgb) == len(lines)
    if are_colours:
        codes = [int(match[1]) << 16 | int(match[2]) << 8 | int(match[3]) for match in rgb]
        # The name is before or after the colour; there may be separators and further columns.
        parts = [re.split(r'[,;:\t]', f'{match.string[:match.start()]}\t{match.string[match.end():]}') for match in rgb]
        names = [next((part.strip() for part in one if part.strip()), 'unnamed') for one in parts]
    else:
        codes, names = [int(match['value']) for match in valued], [match['name'].strip() for match in valued]
    if len(set(codes)) < len(codes):
        raise UserError(f'{path} has two classes of one colour or value: correct it.')
    return Table(path, names, codes, are_colours)


def _rgb(code: int) -> tuple[int, int, int]:
    return code >> 16, code >> 8 & 255, code & 255


def is_plain(path: Path) -> bool:
    """Returns whether a label map has one channel, as mmseg needs it."""
    with Image.open(path) as image:
        return len(image.getbands()) == 1
