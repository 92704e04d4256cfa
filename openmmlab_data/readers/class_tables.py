"""Tables of the classes of label maps: names, perhaps with colours or values."""
import re
from dataclasses import dataclass, field
from pathlib import Path

from openmmlab_data.form.folder import Folder, read_lines
from openmmlab_runs.errors import UserError

TABLES = ('labelmap.txt', 'label_map.txt', '_classes.csv', 'class_dict.csv', 'class_names.txt', 'classes.txt',
          'labels.txt', 'label_colors.txt', 'label_colours.txt', 'classes.csv')
RGB = re.compile(r'(?<!\d)(\d{1,3})\s*[,;:\s]\s*(\d{1,3})\s*[,;:\s]\s*(\d{1,3})(?!\d)')
VALUE_FIRST = re.compile(r'(?P<value>\d{1,5})\s*[,;:\t]\s*(?P<name>.+)')
VALUE_LAST = re.compile(r'(?P<name>.+?)\s*[,;:\t]\s*(?P<value>\d{1,5})')


@dataclass(frozen=True)
class ClassTable:
    """Classes in a file: names, perhaps with colours (r * 65536 + g * 256 + b) or values as codes."""
    path: Path
    names: list[str]
    codes: list[int] = field(default_factory=list)
    are_colours: bool = False


def find_table(folder: Folder, named: Path | None) -> ClassTable | None:
    """Reads the table that a user named, or else that of `TABLES` which is nearest to the root; None if there is none.
    """
    found = [named] if named else sorted((path for path in folder.files if path.name.lower() in TABLES),
                                         key=lambda path: (len(path.parts), TABLES.index(path.name.lower())))
    return next((one for path in found if (one := read_table(path)).names or named), None)


def read_table(path: Path) -> ClassTable:
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
        return ClassTable(path, lines)
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
    return ClassTable(path, names, codes, are_colours)


def colour_of(code: int) -> tuple[int, int, int]:
    return code >> 16, code >> 8 & 255, code & 255
