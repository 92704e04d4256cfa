"""The splits of a folder of data: which one a name means, and how images are divided."""
import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from openmmlab_tools.data.datasets import SPLITS
from openmmlab_tools.errors import UserError
from openmmlab_tools.files import IMAGE_SUFFIXES
from openmmlab_tools.texts import shell

from .dataset import LabelledData, Picture
from .folder import Folder, split_in
from .settling import settle
from .split_lists import read_split_lists

# The name of a crop, with the image that it is from: slide1_0_512.png, slide1_x0_y512.png.
CROP = r'^(.+?)[_-]\D?\d+[_-]\D?\d+\.\w+$'
LISTS = 'Main', 'Segmentation'  # the folders of VOC's lists, for boxes and for label maps


def split_of(path: Path, root: Path) -> str:
    """Returns the split of the innermost folder of a path that names one, or 'train' if none does."""
    return _split_of(path.parent, root)


@lru_cache(1024)  # folders have many files
def _split_of(folder: Path, root: Path) -> str:
    parts = folder.relative_to(root).parts if folder.is_relative_to(root) else folder.parts[-2:]
    return next((split for part in reversed(parts) if (split := split_in(part))), 'train')


def divide(data: LabelledData, pictures: Sequence[Picture], folder: Folder, splits: Mapping[str, Sequence[Path]] = {}
           ) -> None:
    """Puts images into the splits that their annotations name, or else lists, or else their folders."""
    # An image that only its annotation file holds is in the folder of that file.
    places = {picture.path: picture.path if picture.path.is_relative_to(folder.root)
              else picture.annotation or picture.path
              for picture in pictures}
    has_maps = any(picture.annotation and picture.annotation.suffix.lower() in IMAGE_SUFFIXES for picture in pictures)
    splits = splits or read_split_lists(folder, [*places], data.account, LISTS[has_maps]) or {
        split: [path for path, place in places.items() if split_of(place, folder.root) == split] for split in SPLITS}
    by_image = {picture.path: picture for picture in pictures}
    listed = {image for images in splits.values() for image in images}
    for picture in pictures:
        if picture.path not in listed:
            data.account.leave('images', 'images are in no list of a split', folder.name(picture.path), picture.records)
            data.account.leave('objects', 'objects are of images in no list of a split', folder.name(picture.path),
                               sum(other.records for other in picture.objects))
    for split in SPLITS:
        if chosen := [by_image[image] for image in dict.fromkeys(splits.get(split, ())) if image in by_image]:
            data.splits[split] = chosen


def complete(data: LabelledData, pictures: Sequence[Picture], folder: Folder,
             splits: Mapping[str, Sequence[Path]] = {}, names: Sequence[str] = ()) -> LabelledData:
    """Completes data with the images of a reader, its classes (`names`, if the layout contains them) and splits; see
    `settle`.
    """
    settle(data, names or sorted({other.name.strip() for picture in pictures for other in picture.objects}), pictures)
    divide(data, pictures, folder, splits)
    return data


def choose_groups(names: Sequence[str], number: int, seed: int, pattern: str) -> set[str]:
    """Returns at most `number` names, in whole groups, in a random order; the smallest group if all are larger.

    A group is the names in which the regular expression finds the same: its first group, or all that matches if it has
    none. A name without a match is a group of its own. Raises a UserError if `pattern` is no regular expression, or
    there is only one group.
    """
    try:
        matches = {name: re.search(pattern, name) for name in names}
    except re.error as error:
        raise UserError(f'group_by is {pattern}, which is no regular expression ({error}): correct it.') from None
    groups: dict[object, list[str]] = {}
    for name, match in matches.items():
        groups.setdefault((match.groups() or (match[0],))[:1] if match else name, []).append(name)
    if len(groups) == 1 or not any(matches.values()):
        fault = 'nothing in any name' if not any(matches.values()) else 'the same text in all names'
        raise UserError(f'group_by is {pattern}, which matches {fault}, such as {names[0]}: choose a pattern whose '
                        'match differs between groups.')
    chosen: set[str] = set()
    for group in random.Random(seed).sample(list(groups.values()), len(groups)):
        chosen.update(group if len(chosen) + len(group) <= number else ())
    smallest = min(groups.values(), key=len)
    return chosen or {*smallest}


def take_share(data: LabelledData, share: float, seed: int, group_by: str | None = None) -> None:
    """Moves a share of training to validation; entries of one file, or of a group, stay together (`choose_groups`).

    A UserError if either is empty.
    """
    pictures, root = data.splits['train'], data.root
    name_of = {picture.path: (picture.path.relative_to(root) if picture.path.is_relative_to(root)
                              else picture.path).as_posix()
               for picture in pictures}
    names = list(name_of.values())
    number = max(1, round(share * len(names)))
    if not 0 < share < 1 or number >= len(names):
        raise UserError(f'the share of images for validation is {share}, but it must be between 0 and 1, and leave '
                        f'some of the {len(names)} images for training: pass another share, a folder or a file with '
                        '--val.')
    chosen = (choose_groups(names, number, seed, group_by) if group_by is not None else
              set(random.Random(seed).sample(names, number)))
    data.splits['train'] = [picture for picture in pictures if name_of[picture.path] not in chosen]
    data.splits['val'] = [picture for picture in pictures if name_of[picture.path] in chosen]
    data.notes.append(f'There is no split for validation, so {len(data.splits["val"])} of the training images are '
                      f'used for validation (seed {seed}).')
    sources = {match[1] for name in names if (match := re.search(CROP, name))}
    if group_by is None and 1 < len(sources) <= len(names) / 4:
        data.notes.append(f'Names such as {names[0]} look like crops from {len(sources)} images. If crops from one '
                          'image are in both training and validation, metrics are too good. Pass '
                          f'{shell("--group-by", CROP)} to keep them together.')
