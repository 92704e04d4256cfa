"""Reads label maps (their values, colours or classes), and tables of classes."""
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from openmmlab_tools.errors import FileFault, first_line
from openmmlab_tools.pictures.images import NO_IMAGE, check_alone, pages

from .dataset import LabelMap
from .folder import read_lines

NO_CLASS = 255
RGB = re.compile(r'(?<!\d)(\d{1,3})\s*[,;:\s]\s*(\d{1,3})\s*[,;:\s]\s*(\d{1,3})(?!\d)')
VALUE_FIRST = re.compile(r'(?P<value>\d{1,5})\s*[,;:\t]\s*(?P<name>.+)')
VALUE_LAST = re.compile(r'(?P<name>.+?)\s*[,;:\t]\s*(?P<value>\d{1,5})')


class LabelMapFault(FileFault):
    """A fault of a label map."""
    noun = 'label map '


class HasColours(LabelMapFault):
    """A label map has colours instead of values."""


class MapFile(NamedTuple):
    """The content of a label map."""
    values: np.ndarray  # `(H, W)`, int64; colours are r * 65536 + g * 256 + b
    is_plain: bool  # whether the file has one channel, as mmseg needs it
    palette: list[int]  # three numbers for each value; empty if there is none


def open_label_map(path: Path, as_colours: bool = False) -> MapFile:
    """Reads values, or with `as_colours` colours. It raises HasColours if the file has colours instead of values, and a
    LabelMapFault if it cannot be read.
    """
    try:
        with Image.open(path) as image:
            check_alone(len(pages(image)), path)
            bands, palette = image.getbands(), image.getpalette() or []
            is_gif = image.format == 'GIF'  # its numbers are places in a palette, in any order
            pixels = np.asarray(image.convert('RGB') if as_colours or len(bands) > 2 or is_gif else
                                image.getchannel(0) if image.mode == 'LA' else image)
    except FileFault as fault:
        raise LabelMapFault(path, fault.detail) from fault
    except NO_IMAGE as error:
        raise LabelMapFault(path, f'cannot be read ({first_line(error)}): put the whole file there') from error
    if is_gif or path.suffix.lower() in ('.jpg', '.jpeg'):  # whose compression changes values
        grey = pixels if pixels.ndim == 2 else pixels.mean(axis=2)
        if ((grey > 64) & (grey < 192)).mean() > 0.1:
            raise LabelMapFault(path, 'is a JPEG or GIF file, which may have two values only, but has more: save it as '
                                'PNG')
        return MapFile(np.where(grey >= 128, np.int64(NO_CLASS), 0), False, [])
    if pixels.ndim == 3:
        red, green, blue = pixels.astype(np.int64).transpose(2, 0, 1)
        if not as_colours and not ((red == green).all() and (green == blue).all()):
            raise HasColours(path, 'has colours, but must have the number of a class at each pixel: convert it')
        return MapFile(red << 16 | green << 8 | blue if as_colours else red, False, palette)
    if not (pixels % 1 == 0).all():
        raise LabelMapFault(path, 'has values that are no whole numbers: convert it')
    return MapFile(pixels.astype(np.int64), len(bands) == 1, palette)


def to_classes(label_map: LabelMap) -> np.ndarray:
    """Reads the classes of a label map, `(H, W)`, uint8; 255 where there is none."""
    labels = open_label_map(label_map.path, label_map.are_colours).values
    if not label_map.codes:
        return labels.clip(0, NO_CLASS).astype(np.uint8)
    known = np.array(sorted(label_map.codes))
    classes = np.array([label_map.codes[code] for code in known.tolist()], np.uint8)
    index = np.searchsorted(known, labels).clip(max=len(known) - 1)
    return np.where(known[index] == labels, classes[index], np.uint8(NO_CLASS))


@dataclass(frozen=True)
class ClassTable:
    """Classes in a file: names, perhaps with colours (r * 65536 + g * 256 + b) or values as codes."""
    path: Path
    names: list[str]
    codes: list[int] = field(default_factory=list)
    are_colours: bool = False
    no_class: tuple[int, ...] = (NO_CLASS,)  # values that mean none


def read_table(path: Path) -> ClassTable:
    """Reads classes: in each line a name, perhaps with a colour as three numbers, or with the value of its pixels.
    Lines that begin with `#`, and headings of CSV files, are left out. A UserError if the file is no text.
    """
    if not path.is_file():
        raise FileFault(path, 'is no file: name a table of classes and colours')
    lines = [line for line in read_lines(path) if not line.startswith('#')]
    if len(lines) > 1 and not re.search(r'\d', lines[0]) and all(re.search(r'\d', line) for line in lines[1:]):
        lines = lines[1:]  # the heading of a CSV file
    rgb = [match for line in lines if (match := RGB.search(line))]
    valued = [match for line in lines if (match := VALUE_FIRST.fullmatch(line) or VALUE_LAST.fullmatch(line))]
    if not lines or len(lines) not in (len(rgb), len(valued)):
        return ClassTable(path, lines)
    are_colours = len(rgb) == len(lines)
    if are_colours:
        codes = [int(match[1]) << 16 | int(match[2]) << 8 | int(match[3]) for match in rgb]
        # The name is before or after the colour; there may be separators and further columns.
        parts = [re.split(r'[,;:\t]', f'{match.string[:match.start()]}\t{match.string[match.end():]}') for match in rgb]
        names = [next((part.strip() for part in cells if part.strip()), 'unnamed') for cells in parts]
    else:
        codes, names = [int(match['value']) for match in valued], [match['name'].strip() for match in valued]
    if len(set(codes)) < len(codes):
        raise FileFault(path, 'has two classes of one colour or value: correct it')
    return ClassTable(path, names, codes, are_colours)
