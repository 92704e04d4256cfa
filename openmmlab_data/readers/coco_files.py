"""COCO files of a folder, one a split, and panoptic ones with their PNG files."""
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openmmlab_data.form.folder import Folder, folders_of, peek
from openmmlab_data.form.objects import mask, read_headers
from openmmlab_data.form.splits import Data, Split, split_in, split_of
from openmmlab_runs.data.coco import Coco, Entry, read_coco, read_json, to_id
from openmmlab_runs.errors import UserError, explain
from openmmlab_runs.texts import told

from .label_maps import read_label_map

COCO = 'COCO annotations'
BEST_NAME = 'instances'  # beside `person_keypoints_*.json` of the same images


def read_coco_files(files: Sequence[Path], folder: Folder, named: bool) -> Data:
    """Reads COCO files. The name of a file or folder says its split, unless a user has `named` it: then it is training.

    A file is used where it lies, if mmdet reads it as it is: all names of images lead to them from one folder, and
    categories are the classes in their order. Otherwise its content is for a file of our own. A UserError if a file is
    not in this layout, two are for one split, or none of its images is there.
    """
    data = Data(COCO, folder.root, {})
    parts: dict[str, tuple[Path, Coco, bool]] = {}
    by_split: dict[str, list[Path]] = {}
    for file in files:
        split = 'train' if named else split_in(file.stem) or split_of(file, folder.root)
        by_split.setdefault(split, []).append(file)
    for split, found in by_split.items():
        best = [file for file in found if BEST_NAME in file.stem] if len(found) > 1 else found
        if len(best) != 1:
            raise UserError(f'{found[0]} and {found[1]} are both for {split}: name one of them, and the other with '
                            '--val if it is for validation.')
        file = best[0]
        if left := [one.name for one in found if one != file]:
            data.notes.append(f'{", ".join(left)} left out: {file.name} is for {split}.')
        coco = (Coco(from_panoptic(read_json(file), file, folder), ['is panoptic']) if b'"segments_info"' in peek(file)
                else read_coco(str(file), needs_sizes=False))
        if coco['annotations'] or split == 'train':
            parts[split] = file, coco, _normalize(coco, file, data)
        else:
            data.notes.append(f'{file.name} has no annotations, so there is no {split} split.')
    used: dict[str, bool] = {}
    for _, coco, _ in parts.values():
        ids = {one['category_id'] for one in coco['annotations']}
        for category in coco['categories']:
            used[category['name']] = used.get(category['name'], False) or category['id'] in ids
    data.classes = [name for name, is_used in used.items() if is_used]
    data.tell_unused([name for name, is_used in used.items() if not is_used])
    for split, (file, coco, is_changed) in parts.items():
        images, where, is_plain = _find_images(coco, file, split, folder, data)
        listed = [category['name'] for category in coco['categories'] if category['name'] in data.classes]
        reason = ('it lacks what mmdet reads, or has two categories of one name' if is_changed else
                  'its images lie elsewhere' if not is_plain else
                  'its categories are in another order than the classes' if listed != data.classes else '')
        data.splits[split] = Split(coco, where, None if reason else file, folders=folders_of(images, folder.root))
        data.notes += [f'{file.name} is written anew for mmdet, since {reason}.'] if reason else []
    return data


def _normalize(coco: Coco, file: Path, data: Data) -> bool:
    """Merges categories of one name, and drops annotations that cannot be used; returns whether something changed."""
    data.notes += [f'{file.name} {repair}.' for repair in coco.repairs]
    first = {category['name']: category['id'] for category in reversed(coco['categories'])}
    same = {category['id']: first[category['name']] for category in coco['categories']}
    images = {image['id'] for image in coco['images']}
    kept = [dict(one, category_id=same[one['category_id']]) for one in coco['annotations']
            if one['category_id'] in same and one['image_id'] in images]
    twice = [name for name, number in Counter(one['name'] for one in coco['categories']).items() if number > 1]
    lost = len(coco['annotations']) - len(kept)
    if twice:
        data.notes.append(f'{file.name} has several categories of the name {", ".join(twice)}: they are one class.')
    if lost:
        data.notes.append(f'{lost} annotations of {file.name} are left out: their category or image is not in it.')
    coco['categories'] = [one for one in coco['categories'] if same[one['id']] == one['id']]
    coco['annotations'] = kept
    return bool(coco.repairs or twice or lost)


def _find_images(coco: Coco, file: Path, split: str, folder: Folder, data: Data) -> tuple[list[Path], Path, bool]:
    """Returns the images of a file, their folder, and whether names are those of the file; drops images not there."""
    names = list(dict.fromkeys(image['file_name'] for image in coco['images']))
    known = {folder.name(path) for path in folder.images}
    above = dict.fromkeys(place for parent in dict.fromkeys(path.parent for path in folder.images)
                          for place in (parent, *parent.parents) if place.is_relative_to(folder.root))
    # Several folders may have images of the same names: first those of the split.
    order = [file.parent, *(place for place in above if split_of(place / '_', folder.root) == split), *above]
    counts = {place: sum(folder.name(place / name) in known for name in names) for place in dict.fromkeys(order)}
    best = max(counts, key=lambda place: counts[place])
    located = {name: best / name if folder.name(best / name) in known else folder.locate(name, best, file.parent)
               for name in names}
    places = {name: place for name, place in located.items() if place and place.is_file()}
    missing = [name for name in names if name not in places]
    if not places:
        raise UserError(f'none of the {len(names)} images of {file} is there, such as {names[0]}: put them below '
                        f'{folder.root}.')
    data.notes += told(missing, f'images of {file.name} are not there and are left out')
    is_plain = counts[best] == len(names)
    where = best if is_plain else folder.root
    headers = dict(zip(places, read_headers(list(places.values())), strict=True))
    data.pixels.update(header.pixels for header in headers.values())
    coco['images'] = [dict(image) for image in coco['images'] if image['file_name'] in places]
    for image in coco['images']:
        name = image['file_name']
        if not image.get('width') or not image.get('height'):
            image['height'], image['width'] = headers[name][:2]
        image['file_name'] = name if is_plain else folder.name(places[name])
    ids = {image['id'] for image in coco['images']}
    coco['annotations'] = [one for one in coco['annotations'] if one['image_id'] in ids]
    return list(places.values()), where, is_plain


def from_panoptic(coco: dict[str, Any], file: Path, folder: Folder) -> dict[str, list[Entry]]:
    """Makes masks of things: R + 256 G + 256^2 B is a segment's id. A UserError if a PNG file or a key is missing."""
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
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f'{file} has panoptic annotations that cannot be read ({explain(error)}): export it again.'
                        ) from error
    return dict(images=images, categories=list(categories.values()), annotations=annotations)
