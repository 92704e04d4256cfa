"""COCO files of a folder, one a split, and panoptic ones with their PNG files."""
from collections import Counter
from pathlib import Path
from typing import Any

from openmmlab_runs.data.coco import Coco, read_coco, to_id
from openmmlab_runs.data.folder import Folder, folders_of, peek, read_json
from openmmlab_runs.data.objects import mask, read_sizes
from openmmlab_runs.data.splits import Data, Split, split_in, split_of
from openmmlab_runs.errors import UserError, explain

from .label_maps import read_label_map

COCO = 'COCO annotations'
BEST_NAME = 'instances'  # beside `person_keypoints_*.json` of the same images

Entry = dict[str, Any]


def is_coco(head: bytes) -> bool:
    """Returns whether a JSON file is in COCO's layout, by parts of its content."""
    return b'"images"' in head and b'"categories"' in head


def read_coco_files(files: list[Path], folder: Folder, named: bool = False) -> Data:
    """Reads COCO files. The name of a file or folder says its split.

    A file is used where it lies, if mmdet reads it as it is: all names of images lead to them from one folder, and
    categories are the classes in their order. Otherwise its content is for a file of our own.

    Args:
        files: The files.
        folder: Their folder.
        named: Whether a user has named the only file, which then is for training. Defaults to False.

    Raises:
        UserError: If a file is not in this layout, two are for one split, or none of its images is there.
    """
    data = Data(COCO, folder.root, {})
    parts: dict[str, tuple[Path, Coco, bool]] = {}
    for split, file in _choose(files, folder, named, data.notes).items():
        coco = _read(file, folder)
        if not coco['annotations'] and split != 'train':
            data.notes.append(f'{file.name} has no annotations, so there is no {split} split.')
            continue
        parts[split] = file, coco, _normalize(coco, file, data)
    data.classes = list(dict.fromkeys(
        category['name'] for _, coco, _ in parts.values() for category in _used(coco)))
    _tell_unused(parts, data)
    for split, (file, coco, is_own) in parts.items():
        images, where, is_plain = _find_images(coco, file, split, folder, data)
        listed = [category['name'] for category in coco['categories'] if category['name'] in data.classes]
        as_it_is = is_plain and not is_own and listed == data.classes
        data.splits[split] = Split(coco, where, file if as_it_is else None, folders=folders_of(images, folder.root))
        if not as_it_is:
            data.notes.append(f'{file.name} is written anew for mmdet, since {_reason(is_own, is_plain)}.')
    return data


def _read(file: Path, folder: Folder) -> Coco:
    ends = peek(file)
    if b'"segments_info"' not in ends:
        return read_coco(str(file), needs_sizes=False)
    return Coco(from_panoptic(read_json(file), file, folder), ['is panoptic'])


def _reason(is_own: bool, is_plain: bool) -> str:
    if is_own:
        return 'it lacks what mmdet reads, or has two categories of one name'
    return 'its categories are in another order than the classes' if is_plain else 'its images lie elsewhere'


def _choose(files: list[Path], folder: Folder, named: bool, notes: list[str]) -> dict[str, Path]:
    """Returns the file of each split."""
    by_split: dict[str, list[Path]] = {}
    for file in files:
        split = 'train' if named else split_in(file.stem) or split_of(file, folder.root)
        by_split.setdefault(split, []).append(file)
    chosen = {}
    for split, found in by_split.items():
        best = [file for file in found if BEST_NAME in file.stem] if len(found) > 1 else found
        if len(best) != 1:
            raise UserError(f'{found[0]} and {found[1]} are both for {split}: name one of them, and the other with '
                            '--val if it is for validation.')
        chosen[split] = best[0]
        if left := [file for file in found if file != best[0]]:
            notes.append(f'{", ".join(file.name for file in left)} left out: {best[0].name} is for {split}.')
    return chosen


def _normalize(coco: Coco, file: Path, data: Data) -> bool:
    """Merges categories of one name, and drops annotations that cannot be used; returns whether something changed."""
    changed = bool(coco.repairs)
    data.notes += [f'{file.name} {repair}.' for repair in coco.repairs]
    first: dict[str, Any] = {}
    for category in coco['categories']:
        first.setdefault(category['name'], category['id'])
    if len(first) < len(coco['categories']):
        twice = [name for name, count in Counter(one['name'] for one in coco['categories']).items() if count > 1]
        same = {category['id']: first[category['name']] for category in coco['categories']}
        coco['categories'] = [one for one in coco['categories'] if same[one['id']] == one['id']]
        coco['annotations'] = [dict(one, category_id=same.get(one['category_id'], one['category_id']))
                               for one in coco['annotations']]
        data.notes.append(f'{file.name} has several categories of the name {", ".join(twice)}: they are one class.')
        changed = True
    categories, images = set(first.values()), {image['id'] for image in coco['images']}
    kept = [one for one in coco['annotations'] if one['category_id'] in categories and one['image_id'] in images]
    if len(kept) < len(coco['annotations']):
        data.notes.append(f'{len(coco["annotations"]) - len(kept)} annotations of {file.name} are left out: their '
                          'category or image is not in the file.')
        coco['annotations'], changed = kept, True
    return changed


def _used(coco: Coco) -> list[Entry]:
    used = {one['category_id'] for one in coco['annotations']}
    return [category for category in coco['categories'] if category['id'] in used]


def _tell_unused(parts: dict[str, tuple[Path, Coco, bool]], data: Data) -> None:
    unused = dict.fromkeys(category['name'] for _, coco, _ in parts.values() for category in coco['categories']
                           if category['name'] not in data.classes)
    if unused:
        names = list(unused)[:5]
        data.notes.append(f'{len(unused)} categories have no object and are no classes: {", ".join(names)}'
                          f'{", ..." if len(unused) > 5 else ""}.')


def _find_images(coco: Coco, file: Path, split: str, folder: Folder, data: Data
                 ) -> tuple[list[Path], Path, bool]:
    """Finds the images of a file, changes their names to be relative to a folder, and leaves out those not there.

    Returns:
        The images, the folder, and whether the names are those of the file.
    """
    names = [image['file_name'] for image in coco['images']]
    known = {folder.name(path) for path in folder.images}
    parents = dict.fromkeys(path.parent for path in folder.images)
    above = dict.fromkeys(place for parent in parents for place in (parent, *parent.parents)
                          if place.is_relative_to(folder.root))
    # Several folders may have images of the same names: first those of the split.
    order = [file.parent, *(place for place in above if split_of(place / '_', folder.root) == split), *above]
    counts = {place: sum(folder.name(place / name) in known for name in names) for place in dict.fromkeys(order)}
    best = max(counts, key=lambda place: counts[place])
    places = {name: best / name if folder.name(best / name) in known else folder.locate(name, best, file.parent)
              for name in dict.fromkeys(names)}
    missing = [name for name, place in places.items() if place is None or not place.is_file()]
    if len(missing) == len(places):
        raise UserError(f'none of the {len(places)} images of {file} is there, such as {names[0]}: put them below '
                        f'{folder.root}.')
    is_plain = not missing and counts[best] == len(names)
    if not is_plain:
        data.notes += [f'{len(missing)} images of {file.name} are not there and are left out, such as {missing[0]}.'
                       ] if missing else []
        gone = set(missing)
        coco['images'] = [dict(image, file_name=folder.name(place)) for image in coco['images']
                          if image['file_name'] not in gone and (place := places[image['file_name']])]
        ids = {image['id'] for image in coco['images']}
        coco['annotations'] = [one for one in coco['annotations'] if one['image_id'] in ids]
    found = [place for name, place in places.items() if place and name not in set(missing)]
    sizes = dict(zip(found, read_sizes(found), strict=True))
    data.channels |= {channels for _, _, channels, _ in sizes.values()}
    data.deep += sum(is_deep for *_, is_deep in sizes.values())
    where = best if is_plain else folder.root
    for image in coco['images']:
        if not image.get('width') or not image.get('height'):
            image['width'], image['height'], *_ = sizes[where / image['file_name']]
    return found, where, is_plain


def from_panoptic(coco: dict[str, Any], file: Path, folder: Folder) -> dict[str, list[Entry]]:
    """Makes masks of the things in panoptic annotations; stuff such as sky has none.

    A segment is the pixels of its colour in the PNG file: R + 256 G + 256^2 B is its id.

    Raises:
        UserError: If a PNG file is missing or lacks a segment's keys.
    """
    try:
        categories = {to_id(one['id']): dict(id=to_id(one['id']), name=str(one['name'])) for one in coco['categories']
                      if one.get('isthing', 1)}
        images = [dict(id=to_id(one['id']), file_name=str(one['file_name'])) for one in coco['images']]
        annotations: list[Entry] = []
        for one in coco['annotations']:
            place = folder.locate(one['file_name'], file.with_suffix(''), file.parent)
            if place is None:
                raise UserError(f'{one["file_name"]}, which {file} names, is not there: put it into {file.stem}/ '
                                'beside it.')
            pixels = read_label_map(place, as_colours=True)
            for segment in one['segments_info']:
                if (category := to_id(segment['category_id'])) in categories:
                    number = segment['id']
                    code = (number & 255) << 16 | (number & 255 << 8) | number >> 16  # as read_label_map has it
                    annotations.append(dict(
                        mask(pixels == code), id=len(annotations) + 1, image_id=to_id(one['image_id']),
                        category_id=category, iscrowd=int(segment.get('iscrowd', 0))))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f'{file} has panoptic annotations that cannot be read ({explain(error)}): export it again.'
                        ) from error
    return dict(images=images, categories=list(categories.values()), annotations=annotations)
