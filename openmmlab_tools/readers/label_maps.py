"""Label maps: images whose pixels are numbers of classes, colours, or numbers of objects."""
import re
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np

from openmmlab_tools.errors import FileFault, UserError
from openmmlab_tools.readers.form.dataset import LabelledData, LabelledObject, LabelMap, Picture
from openmmlab_tools.readers.form.folder import Folder, Kind, kind_of
from openmmlab_tools.readers.form.label_map_files import NO_CLASS, ClassTable, HasColours, open_label_map, read_table
from openmmlab_tools.readers.form.objects import mask
from openmmlab_tools.readers.form.records import pictures_of
from openmmlab_tools.readers.form.splits import complete, divide
from openmmlab_tools.texts import some, told

from .layouts import LABEL_MAPS, Reading

SUFFIXES = ('.png', '.tif', '.tiff', '.bmp')
LOSSY = ('.jpg', '.jpeg', '.gif')  # of masks with two values only
CITYSCAPES, IDS = re.compile(r'_gt(?:Fine|Coarse)_(\w+)$'), ('labelTrainIds', 'labelIds')
# The numbers that Cityscapes' labelIds give to its 19 classes for training, in their order.
CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
ADE20K = re.compile(r'ADE_(train|val|test)_\d+')
THOUSAND, IGNORED = 1000, 10_000  # of MOTS: values are class * 1000 + number of the object, or mean nothing
MOST_COLOURS = 64  # more colours without a table are no classes
TRIED = 200  # label maps that are looked at for objects
RARE = 0.01  # of all pixels
MOST_KINDS, LOOKED_AT = 10, 5  # kinds of images, and pairs of them, of which the colours are counted
TABLES = ('labelmap.txt', 'label_map.txt', '_classes.csv', 'class_dict.csv', 'class_names.txt', 'classes.txt',
          'labels.txt', 'label_colors.txt', 'label_colours.txt', 'classes.csv')


@dataclass(frozen=True)
class Meaning:
    classes: list[str]
    codes: dict[int, int] = field(default_factory=dict)  # value or colour -> class; empty if values are the classes
    are_colours: bool = False  # whether the codes are colours
    palette: list[tuple[int, ...]] = field(default_factory=list)  # the colour of each class; empty if there are none
    notes: list[str] = field(default_factory=list)  # sentences about what was guessed


class Counted(dict[int, int]):
    """Counts the pixels of a label map by their value or colour."""
    is_plain = False  # see `MapFile`


def find_label_maps(folder: Folder) -> list[Path]:
    """Returns images that are label maps: their names say so, or a JPEG with the same name is in the same folder.

    JPEG and GIF files are returned only if there are no other label maps. From Cityscapes, one kind of files is
    returned.
    """
    photos = {path.with_suffix('') for path in folder.images if path.suffix.lower() not in SUFFIXES}
    maps = [path for path in folder.with_suffix(*SUFFIXES) if folder.is_label(path) or path.with_suffix('') in photos]
    kinds = {path: match[1] for path in maps if (match := CITYSCAPES.search(path.stem))}
    if kinds:
        best = next((kind for kind in IDS if kind in kinds.values()), '')
        return [path for path, kind in kinds.items() if kind == best]
    return maps or [path for path in folder.with_suffix(*LOSSY) if folder.is_label(path)]


def unnamed_label_maps(folder: Folder) -> tuple[list[Kind], str] | None:
    """Finds label maps by their content. Returns their kinds, and a sentence about them; None if there are none.

    A kind is a folder, or a word at the end of the name. Two kinds belong together if the rest of their names is equal.
    The kind with few colours contains label maps if the other kind has many colours.
    """
    by_kind: dict[Kind, dict[str, Path]] = {}
    for path in folder.images:
        kind = kind_of(path)
        by_kind.setdefault(kind, {})[path.stem.removesuffix(kind[1])] = path
    largest = sorted(by_kind, key=lambda kind: -len(by_kind[kind]))[:MOST_KINDS]
    kinds, examples = list[Kind](), list[str]()
    for kind in largest:
        maps = by_kind[kind]
        fitting = [photos for other in largest if other not in (kind, *kinds) and maps.keys() <= (
            photos := {path.stem: path for path in by_kind[other].values()} | by_kind[other]).keys()]
        # Where there are several, nothing says which of them a label map is for.
        if len(fitting) == 1 and all(path.suffix.lower() in SUFFIXES for path in maps.values()):
            names = sorted(maps)[::-(-len(maps) // LOOKED_AT)]
            if all(_colours(maps[name]) <= MOST_COLOURS < _colours(fitting[0][name]) for name in names):
                kinds.append(kind)
                examples.append(f'{folder.name(maps[names[0]])} for {folder.name(fitting[0][names[0]])}')
    return (kinds, f'Images of at most {MOST_COLOURS} colours are taken for label maps of others, such as '
            f'{some(examples, 2)}.') if kinds else None


def _colours(path: Path) -> int:
    """Returns how many colours an image has; more than `MOST_COLOURS` if it cannot be read."""
    try:
        return len(np.unique(open_label_map(path, as_colours=True).values))
    except UserError:
        return MOST_COLOURS + 1


def several_masks(folder: Folder) -> str | None:
    """Returns a clause about folders with a mask for each object, beside a folder with one image, as DSB2018 has them.
    """
    by_place: dict[Path, list[Path]] = {}
    for path in folder.with_suffix(*SUFFIXES):
        if folder.is_label(path):
            by_place.setdefault(path.parent, []).append(path)
    for place, paths in by_place.items():
        photos = folder.photos_for(paths[0])
        if len(photos) == 1 and len(paths) > 1:
            return (f'{place} has {len(paths)} masks for the image {photos[0]}, probably one for each object. This '
                    'layout is not supported. Write one label map for each image, with the name of the image: the '
                    'pixels of the first object are 1, the pixels of the second object are 2, and so on. Then pass '
                    '--masks instances')
    return None


def read_label_maps(reading: Reading) -> LabelledData:
    """Reads label maps, of classes or of numbers of objects; a UserError if the values mean nothing, or lack a name."""
    folder, kind = reading.folder, reading.options.masks
    data = LabelledData(LABEL_MAPS, folder.root)
    pictures, _ = pictures_of(reading.files, folder, 'label map', data)
    paths = [picture.annotation for picture in pictures if picture.annotation]
    table = None if reading.options.colours else _of_cityscapes(paths) or _of_ade20k(paths)
    if not table and (table := find_table(folder, reading.options.colours)):
        data.account.use('descriptions', table.path)
    counts = None if kind == 'colours' else _count(paths, False)
    if counts and kind in (None, 'instances') and reading.options.semantic is not True:
        if _are_numbered(set().union(*counts)):
            return _read_objects(data, pictures, folder, table, THOUSAND, kind)
        if kind or (not (table and table.codes) and _look_like_objects(paths, counts)):
            return _read_objects(data, pictures, folder, table, 0, kind)
    palette = open_label_map(paths[0]).palette if counts else []
    if counts is None or (palette and table and table.are_colours):
        counts = _count(paths, True) or []
        meaning = _of_colours(sorted(set().union(*counts)), table, folder)
    else:
        meaning = (None if table or kind else _of_two_values(counts, folder)) or _of_values(
            sorted(set().union(*counts)), table, palette, folder, kind)
    classes = meaning.codes or {index: index for index in range(len(meaning.classes))}
    for picture, path, count in zip(pictures, paths, counts, strict=True):
        pixels = {classes[value]: number for value, number in count.items() if value in classes}
        codes = meaning.codes or (None if count.is_plain else {})
        picture.label_map = LabelMap(path, pixels, codes, meaning.are_colours)
    data.is_semantic, data.classes, data.palette = True, meaning.classes, meaning.palette
    data.notes += [*meaning.notes, *_rare(data, [picture.label_map for picture in pictures if picture.label_map])]
    divide(data, pictures, folder)
    return data


def _read_objects(data: LabelledData, pictures: list[Picture], folder: Folder, table: ClassTable | None, factor: int,
                  kind: str | None) -> LabelledData:
    """Makes an object of each value; with a `factor`, values are factor * class + number, else all are of one class."""
    single = table.names[-1] if table and len(table.names) in (1, 2) else 'object'
    if table and not factor and single == 'object':
        data.notes.append(f'{table.path.name} has {len(table.names)} names, but all objects are of one class, so it is '
                          'not used.')
    for picture in pictures:
        assert picture.annotation
        labels = open_label_map(picture.annotation).values
        for value in np.unique(labels).tolist():
            if value == 0 or (value == NO_CLASS and not factor):
                continue
            data.account.seen['objects'] += 1
            if factor and value == IGNORED:
                data.account.leave('objects', f'objects are regions to ignore ({IGNORED})', picture.path.name)
            else:
                name = _name_of(value // factor, table) if factor else single
                picture.objects.append(LabelledObject(name, mask(labels == value)))
    meaning = (f'Values in label maps are {factor} * class + number of the object, as in MOTS and KITTI: each value is '
               'an object.') if factor else (
        'Each value in a label map is one blob, and the values differ between maps. So each value is read as an object '
        f'of class {single}. If the values are classes, pass --masks classes.')
    data.notes += [] if kind else [meaning]
    return complete(data, pictures, folder)


def _name_of(number: int, table: ClassTable | None) -> str:
    names = table.names if table and not table.are_colours else []
    by_number = dict(zip(table.codes, names, strict=True)) if table and table.codes and names else dict(
        enumerate(names, start=1))
    return by_number.get(number, f'class_{number}')


def _are_numbered(values: Collection[int]) -> bool:
    """Returns whether values are class * 1000 + number of the object, and perhaps 0 and those to ignore."""
    numbers = [value for value in values if value not in (0, IGNORED)]
    return min(numbers, default=0) >= THOUSAND and any(value % THOUSAND for value in numbers)


def _rare(data: LabelledData, maps: Sequence[LabelMap]) -> list[str]:
    total = max(sum(sum(label_map.pixels.values()) for label_map in maps), 1)
    shares = [(sum(label_map.pixels.get(index, 0) for label_map in maps) / total, name)
              for index, name in enumerate(data.classes)]
    rare = sorted(pair for pair in shares if 0 < pair[0] < RARE)
    return [f'{len(rare)} of the classes cover less than {RARE:.0%} of the pixels; the rarest is {rare[0][1]} '
            f'({rare[0][0]:.2%}). To give them more weight, set class_weight in model.decode_head.loss_decode.'
            ] if rare else []


def _count(paths: Sequence[Path], as_colours: bool) -> list[Counted] | None:
    """Counts the pixels of each value; returns None if there are colours instead."""
    def count(path: Path) -> Counted:
        content = open_label_map(path, as_colours)
        values, numbers = np.unique(content.values, return_counts=True)
        counted = Counted(zip(values.tolist(), numbers.tolist(), strict=True))
        counted.is_plain = content.is_plain
        return counted

    with ThreadPoolExecutor() as threads:
        try:
            return list(threads.map(count, paths))
        except HasColours:
            return None


def _of_colours(colours: list[int], table: ClassTable | None, folder: Folder) -> Meaning:
    if table and table.are_colours:
        unknown = [colour_of(code) for code in colours if code not in table.codes]
        return Meaning(table.names, {code: index for index, code in enumerate(table.codes)}, True,
                       [colour_of(code) for code in table.codes], notes=told(
                           unknown, f'colours of label maps are not in {table.path.name}', ': they mean no class.'))
    if len(colours) > MOST_COLOURS:
        raise UserError(f'{folder.root} has label maps with {len(colours)} colours, but no table of classes: pass '
                        'one with --colours. Each line has a class name and three numbers.')
    fits = table is None or len(table.names) == len(colours)
    names = table.names if table and fits else [f'colour_{"_".join(map(str, colour_of(code)))}' for code in colours]
    codes = {code: index for index, code in enumerate(colours)}
    unused = [] if table is None or fits else [
        f'{table.path.name} has {len(table.names)} names, but label maps have {len(colours)} colours, so it is not '
        'used.']
    return Meaning(names, codes, True, [colour_of(code) for code in colours], notes=[
        *unused, f'Each of the {len(colours)} colours of the label maps is taken for a class: name them in a file for '
        '--colours, with a name and three numbers in each line.'])


def _of_cityscapes(paths: Sequence[Path]) -> ClassTable | None:
    forms = [match[1] for path in paths if (match := CITYSCAPES.search(path.stem))]
    if not forms:
        return None
    from mmseg.utils import get_classes
    return ClassTable(paths[0], get_classes('cityscapes'), [*CITYSCAPES_IDS] if forms[0] == 'labelIds' else [])


def _of_ade20k(paths: Sequence[Path]) -> ClassTable | None:
    """Returns the classes of ADE20K's own files, in which 0 means no class, and 1 is the first."""
    if not paths or not all(ADE20K.fullmatch(path.stem) for path in paths):
        return None
    from mmseg.utils import get_classes
    names = [name.strip() for name in get_classes('ade20k')]
    return ClassTable(paths[0], names, [*range(1, len(names) + 1)], no_class=(0, NO_CLASS))


def _of_two_values(counts: Sequence[dict[int, int]], folder: Folder) -> Meaning | None:
    """Returns the meaning of maps with 0 and 1 beside others with 0 and 255; else None.

    Raises:
        UserError: If nearly all pixels have the least or the largest value, and the others many between.
    """
    values_by_map = [frozenset(count) - {0} for count in counts]
    ones, most = frozenset({1}), frozenset({NO_CLASS})
    if {ones, most} <= set(values_by_map) <= {frozenset(), ones, most}:
        return Meaning(['background', 'foreground'], {0: 0, 1: 1, NO_CLASS: 1}, notes=[
            f'{values_by_map.count(ones)} label maps have the values 0 and 1, and {values_by_map.count(most)} have 0 '
            'and 255. 0 is read as background, and 1 and 255 as foreground. If this is wrong, pass --masks classes.'])
    total: Counter[int] = sum(map(Counter, counts), Counter())
    ends = {min(total), max(total)} if total else set()
    if len(total) > 10 and ends == {value for value, _ in total.most_common(2)} and sum(
            total[value] for value in ends) >= 0.9 * total.total():
        raise UserError(f'{folder.root} has label maps with {len(total)} values, but most pixels have {min(ends)} or '
                        f'{max(ends)}: they look like masks of two values that were resized or saved with loss. Save '
                        'them with only these two values, or pass --masks classes.')
    return None


def _of_values(values: list[int], table: ClassTable | None, palette: list[int], folder: Folder, kind: str | None
               ) -> Meaning:
    """Returns the meaning of values: numbers of classes, or a few values that stand for them."""
    names = table.names if table else []
    if table and table.codes and not table.are_colours:
        unknown = [value for value in values if value not in (*table.codes, *table.no_class)]
        notes = ['The files have names as in ADE20K, so 0 means no class, and 1 to 150 are its classes. To change '
                 'this, pass --colours.'] if 0 in table.no_class else []
        return Meaning(names, {code: index for index, code in enumerate(table.codes)}, notes=notes + told(
            unknown, f'values of label maps are not in {table.path.name}', ': they mean no class.'))
    foreground = max(values, default=0)
    if kind is None and len(values) == 2 and values[0] == 0 and foreground > 1 and len(names) in (0, 1, 2):
        names = names if len(names) == 2 else ['background', *(names or ['foreground'])]
        return Meaning(names, {0: 0, foreground: 1}, notes=[
            f'Label maps have the values 0 and {foreground}, which are read as {names[0]} and {names[1]}. If this is '
            'wrong, pass --masks classes.'])
    classes = [value for value in values if value != NO_CLASS]
    number = max(classes, default=-1) + 1
    if kind is None and not names and 2 <= len(classes) <= number / 2 and number > 21 and not _are_numbered(classes):
        return Meaning([f'value_{value}' for value in classes], {value: index for index, value in enumerate(classes)},
                       notes=[f'The values {", ".join(map(str, classes))} in the label maps are read as '
                              f'{len(classes)} classes. If this is wrong, pass --masks classes.'])
    if not 2 <= number <= NO_CLASS or values[0] < 0 or (kind is None and not names and len(classes) > MOST_COLOURS):
        if number > 1000:
            raise UserError(f'{folder.root} has label maps with values up to {number - 1}, which may be class * 1000 + '
                            'number of the object, as in KITTI and MOTS: convert them to classes (value // 1000).')
        raise UserError(f'{folder.root} has label maps with the values {some(list(map(str, classes))) or NO_CLASS}. '
                        'Classes must be at least two numbers from 0 to 254; 255 means no class. List the names of the '
                        'classes in classes.txt, one in each line, from class 0 on, or correct the label maps. If the '
                        'values are numbers of objects, pass --masks instances.')
    if table and len(names) < number:
        raise FileFault(table.path, f'has {len(names)} names, but label maps have {number} classes: add names')
    names = names or [f'class_{index}' for index in range(number)]
    if table and table.are_colours:
        return Meaning(names, palette=[colour_of(code) for code in table.codes])
    colours: list[tuple[int, ...]] = [tuple(palette[3 * index:3 * index + 3]) for index in range(len(names))]
    return Meaning(names, palette=colours if len(palette) >= 3 * len(names) else [])


def _look_like_objects(paths: Sequence[Path], counts: Sequence[dict[int, int]]) -> bool:
    """Returns whether values count from 1 in each map, end at different numbers, and are a blob each."""
    highest, single, total = set(), 0, 0
    for path, count in list(zip(paths, counts, strict=True))[:TRIED]:
        values = sorted(value for value in count if value not in (0, NO_CLASS))
        if not values:
            continue
        if values[0] != 1 or values[-1] != len(values) or len(values) > NO_CLASS:
            return False
        highest.add(len(values))
        labels = open_label_map(path).values
        blobs = [cv2.connectedComponents((labels == value).astype(np.uint8))[0] - 1 for value in values]
        single, total = single + blobs.count(1), total + len(values)
    return len(highest) > 1 and single >= 0.9 * total


def find_table(folder: Folder, named: Path | None) -> ClassTable | None:
    """Reads the table of classes that the user named, or the table in `TABLES` nearest to the root; None without a
    table.
    """
    paths = [named] if named else sorted((path for path in folder.files if path.name.lower() in TABLES),
                                         key=lambda path: (len(path.parts), TABLES.index(path.name.lower())))
    return next((table for path in paths if (table := read_table(path)).names or named), None)


def colour_of(code: int) -> tuple[int, int, int]:
    return code >> 16, code >> 8 & 255, code & 255
