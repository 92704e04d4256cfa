"""Descriptions of YOLO data: names of classes and splits in data.yaml, or in obj.data."""
import glob
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from openmmlab_tools.errors import FileFault, first_line
from openmmlab_tools.readers.form.folder import Folder, read_lines, read_text
from openmmlab_tools.readers.form.split_lists import read_list
from openmmlab_tools.texts import shown, told

KEYS = dict(train='train', val='val', valid='val', test='test')
NAME_FILES = ('obj.names', 'classes.txt', 'labels.txt', '_darknet.labels', 'class_names.txt', 'predefined_classes.txt')
MOST_CLASSES = 10_000
MOST_YAML = 2**21  # bytes


@dataclass
class Description:
    names: dict[int, str] = field(default_factory=dict)  # the classes by their numbers; empty if no file has them
    source: Path | None = None  # the file with the names
    places: dict[str, list[Path]] | None = None  # the files and folders of each split, if the files name any
    keypoints: int = 0  # how many numbers keypoints add to a line
    files: list[Path] = field(default_factory=list)  # that describe the data; the file with the splits comes first
    notes: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path | None:
        """The file that names the splits, if any does."""
        return next(iter(self.files), None)


def describe_yolo(folder: Folder, file: Path | None) -> Description:
    """Reads data.yaml, obj.data of Darknet and CVAT, or a list of classes; a UserError for faults or missing files."""
    near = sorted((path for path in folder.with_suffix('.yaml', '.yml', '.data')),
                  key=lambda path: (len(path.parts), path.suffix.lower() == '.data', path.name))
    for candidate in [file] if file and file.suffix.lower() in ('.yaml', '.yml') else near:
        describe = _of_darknet if candidate.suffix.lower() == '.data' else _of_yaml
        description = describe(candidate, folder)
        if description:
            return description
    lists = {path for path in folder.files if path.name.lower() in NAME_FILES or path.suffix == '.names'}
    # A list beside the labels is nearer to them than one of another tool.
    path = min(lists, key=lambda path: (len(path.parts), path.name.lower() not in NAME_FILES, path.name), default=None)
    return Description(dict(enumerate(read_lines(path))), path, files=[path]) if path else Description()


def _of_yaml(path: Path, folder: Folder) -> Description | None:
    if path.stat().st_size > MOST_YAML:
        raise FileFault(path, f'has {path.stat().st_size} bytes, but a data.yaml has at most {MOST_YAML}: pass the '
                        'right file')
    text = read_text(path)
    try:
        # All words stay texts: `no` is a name, not False.
        content = yaml.load(text, getattr(yaml, 'CBaseLoader', yaml.BaseLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FileFault(path, f'is not YAML ({first_line(error)}): correct it') from error
    if not isinstance(content, dict) or not content.get('names'):
        return None
    description = Description(_names(content['names'], path), path, files=[path])
    shape, base = content.get('kpt_shape'), content.get('path')
    if isinstance(shape, list):
        try:
            description.keypoints = math.prod(map(int, shape))
        except (TypeError, ValueError) as error:
            raise FileFault(path, f'has kpt_shape {shown(shape)}, but these are two whole numbers: correct it'
                            ) from error
    if base is not None and not isinstance(base, str):
        raise FileFault(path, f'has {shown(base)} for path, but path must be a folder: correct it')
    bases = [*([place] if base and (place := folder.locate(base, path.parent)) and place.is_dir() else []), path.parent]
    description.places = _places(content, path, bases, folder, description)
    return description


def _names(names: object, path: Path) -> dict[int, str]:
    if isinstance(names, str):
        names = names.strip('[]').split(',')
    if isinstance(names, list | dict) and len(names) <= MOST_CLASSES:
        pairs = names.items() if isinstance(names, dict) else enumerate(names)
        try:
            by_number = {int(number): name.strip() for number, name in pairs}
            if all(0 <= number < MOST_CLASSES for number in by_number):
                return dict(sorted(by_number.items()))
        except (ValueError, TypeError, AttributeError):
            pass
    raise FileFault(path, f'has {shown(names)} for names, but these are a list of names, or a map from numbers to '
                    'names: correct it')


def _of_darknet(path: Path, folder: Folder) -> Description | None:
    pairs = (line.partition('=') for line in read_lines(path))
    content = {key.strip(): value.strip() for key, equals, value in pairs if equals}
    if 'names' not in content:
        return None
    names = folder.locate(content['names'], path.parent)
    if names is None or not names.is_file():
        raise FileFault(path, f'names {content["names"]}, which does not exist: create it, or correct the key names')
    description = Description(dict(enumerate(read_lines(names))), names, files=[path, names])
    description.places = _places(content, path, [path.parent], folder, description)
    return description


def _places(content: dict[Any, Any], path: Path, bases: Sequence[Path], folder: Folder, about: Description
            ) -> dict[str, list[Path]] | None:
    """Finds what a description names for each split (None: none); a UserError if it is not there, or no text."""
    given = {KEYS[key]: value for key, value in content.items() if isinstance(key, str) and key in KEYS and value}
    by_split: dict[str, list[Path]] = {}
    for split, value in given.items():
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, str):
                raise FileFault(path, f'has {shown(value)} for {split}, but this is a folder, a list of images, or '
                                'several of them: correct it')
            places = [place for base in bases for place in map(Path, sorted(glob.glob(str(base / text))))
                      ] if '*' in text else [place] if (place := folder.locate(text, *bases)) else []
            if not places and split == 'test':
                about.notes.append(f'{path.name} names {text} for test, which is not there: there is no test split.')
            elif not places:
                raise FileFault(path, f'names {text} for {split}, which does not exist: create it, or correct the '
                                f'key {split}')
            for place in places:
                if place.is_file() and place.suffix == '.txt':
                    images, missing = read_list(place, folder)
                    if not images:
                        raise FileFault(place, f'names no image that exists, but {path} uses it for {split}: put the '
                                        'images there, or correct the list')
                    about.files.append(place)
                    about.notes += told(missing, f'lines of {place.name} name no image that is there')
                    by_split.setdefault(split, []).extend(images)
                else:
                    by_split.setdefault(split, []).append(place)
    return by_split if given else None
