"""Reads the COCO files in a folder, one for each split, and panoptic COCO files with their PNG files."""
import os
from collections import Counter
from pathlib import Path
from typing import Any

from openmmlab_tools.data.areas import wrong_areas
from openmmlab_tools.data.coco import MAX_COORDINATE, Coco, Entry, read_coco, read_json, to_id
from openmmlab_tools.errors import UserError, as_sentence
from openmmlab_tools.pictures.masks import are_polygons
from openmmlab_tools.readers.form.account import Account
from openmmlab_tools.readers.form.dataset import LabelledData, LabelledObject, Picture, one_of_each
from openmmlab_tools.readers.form.folder import Folder, peek, split_in
from openmmlab_tools.readers.form.label_map_files import open_label_map
from openmmlab_tools.readers.form.objects import Extent, mask
from openmmlab_tools.readers.form.settling import settle
from openmmlab_tools.readers.form.split_lists import read_split_lists
from openmmlab_tools.readers.form.splits import LISTS, divide, split_of

from .layouts import COCO, Reading

NOWHERE = Path()
# Fields that are read, and fields that do not describe objects.
KNOWN = dict(
    images=frozenset(('id', 'file_name', 'width', 'height', 'license', 'coco_url', 'flickr_url', 'date_captured')),
    categories=frozenset(('id', 'name', 'supercategory', 'isthing', 'color')),
    annotations=frozenset(('id', 'image_id', 'category_id', 'bbox', 'area', 'iscrowd', 'segmentation', 'ignore')))
BEST_NAME = 'instances'  # beside `person_keypoints_*.json` of the same images


def read_coco_files(reading: Reading) -> LabelledData:
    """Reads COCO files. The name of a file or folder says its split, unless a user has named it: then it is training.

    A UserError if a file is not in this layout, two are for one split, or none of its images is there.
    """
    folder = reading.folder
    data, names = LabelledData(COCO, folder.root), list[str]()
    for split, file in _by_split(reading, data.notes).items():
        is_panoptic = b'"segments_info"' in peek(file)
        coco = (Coco(from_panoptic(read_json(file), file, folder, data.account)) if is_panoptic else
                read_coco(str(file), needs_sizes=False))
        if coco['annotations'] or split == 'train':
            data.notes += [f'{file.name} {repair}.' for repair in coco.repairs]
            data.splits[split] = data.measured(_pictures(coco, file, split, folder, data))
            names += [category['name'] for category in coco['categories']]
        else:
            data.notes.append(f'{file.name} has no annotations, so there is no {split} split.')
    settle(data, names, [picture for pictures in data.splits.values() for picture in pictures])
    if {*data.splits} == {'train'}:
        pictures = data.splits.pop('train')
        paths = [picture.path for picture in pictures]
        divide(data, pictures, folder, read_split_lists(folder, paths, data.account, LISTS[False]) or dict(train=paths))
    return data


def _by_split(reading: Reading, notes: list[str]) -> dict[str, Path]:
    by_split: dict[str, list[Path]] = {}
    for file in reading.files:
        split = 'train' if reading.named else split_in(file.stem) or split_of(file, reading.folder.root)
        by_split.setdefault(split, []).append(file)
    chosen = {}
    for split, files in by_split.items():
        best = [file for file in files if BEST_NAME in file.stem] if len(files) > 1 else files
        if len(best) != 1:
            raise UserError(f'{files[0]} and {files[1]} are both for {split}: pass one of the files as data. If the '
                            'other file is for validation, pass it with --val.')
        chosen[split] = best[0]
        if left := [file.name for file in files if file != best[0]]:
            notes.append(f'{", ".join(left)} skipped, because {best[0].name} is for {split}.')
    return chosen


def _pictures(coco: Coco, file: Path, split: str, folder: Folder, data: LabelledData) -> list[Picture]:
    """Returns the existing images of a COCO file with their objects. Categories with the same name become one class."""
    account = data.account
    note_records(coco, account)
    names = {category['id']: category['name'] for category in coco['categories']}
    places = _locate([image['file_name'] for image in coco['images']], file, split, folder)
    pictures = [Picture(places.get(image['file_name'], NOWHERE), file,
                        (image.get('width') or 0, image.get('height') or 0))
                for image in coco['images']]
    by_id = {image['id']: picture for image, picture in zip(coco['images'], pictures, strict=True)}
    file_names = {image['id']: image['file_name'] for image in coco['images']}
    areas = wrong_areas(coco['annotations'])
    if areas:
        data.notes.append(f'{file.name} has an impossible area in {len(areas)} annotations: the area of the mask or '
                          'box is written instead.')
    for index, annotation in enumerate(coco['annotations']):
        if index in areas:
            annotation['area'] = areas[index][0]
        if annotation['category_id'] not in names or annotation['image_id'] not in by_id:
            account.leave('objects', f'objects have a category or image that {file.name} lacks', annotation['id'])
        elif by_id[annotation['image_id']].path == NOWHERE:
            account.leave('objects', 'objects are of images that are not there', file_names[annotation['image_id']])
        else:
            ignored = next((f'objects have {key}=1' for key in ('ignore', 'iscrowd') if annotation.get(key)), '')
            keys = dict(_keys(annotation, data), iscrowd=int(bool(ignored)))
            by_id[annotation['image_id']].objects.append(LabelledObject(names[annotation['category_id']], keys,
                extent=_extent(keys),
                                                                 ignored=ignored))
    account.leave_all('images', f'images of {file.name} are not there', [
        image['file_name'] for image in coco['images'] if image['file_name'] not in places])
    if twice := [name for name, number in Counter(names.values()).items() if number > 1]:
        data.notes.append(f'{file.name} has several categories of the name {", ".join(twice)}: they are one class.')
    if len(by_id) < len(pictures):
        data.notes.append(f'{file.name} has {len(pictures) - len(by_id)} images with the same id as another '
                          'image: the objects belong to the last image with this id.')
    return one_of_each((picture for picture in pictures if picture.path != NOWHERE), account)


def note_records(coco: Coco, account: Account) -> None:
    """Counts the images and annotations of a file, and notes fields that are not known."""
    account.seen += Counter(images=len(coco['images']), objects=len(coco['annotations']))
    for name, known in KNOWN.items():
        for entry in coco[name]:
            account.read(entry, known)


def _keys(annotation: Entry, data: LabelledData) -> dict[str, Any]:
    """Returns the keys of an object. mmdet leaves out those whose area is 0, or which have `ignore`, so that metrics
    count what is found there, and masks of polygons without an area.
    """
    keys = {key: value for key, value in annotation.items() if key not in ('id', 'image_id', 'category_id', 'ignore')}
    parts = keys.get('segmentation')
    if isinstance(parts, list) and not any(isinstance(part, list) and len(part) >= 6 for part in parts):
        keys.pop('segmentation')
        if parts:
            data.account.fields['segmentation with polygons of fewer than three points'] += 1
    if keys['area'] <= 0:
        keys['area'] = keys['bbox'][2] * keys['bbox'][3]
    return keys


def _extent(keys: dict[str, Any]) -> Extent:
    """Returns the box around an object, and around its polygons."""
    x, y, width, height = keys['bbox']
    sides, parts = (x, y, x + width, y + height), keys.get('segmentation') or ()
    if are_polygons(parts, MAX_COORDINATE):
        xs, ys = ([number for part in parts for number in part[start::2]] for start in (0, 1))
        sides = min(sides[0], *xs), min(sides[1], *ys), max(sides[2], *xs), max(sides[3], *ys)
    return sides


def _locate(file_names: list[str], file: Path, split: str, folder: Folder) -> dict[str, Path]:
    """Finds the images of a file: of the folders with most of them, the nearest to the file comes first."""
    names = list(dict.fromkeys(file_names))
    known = {*map(str, folder.images)}
    texts = [str(Path(name)) for name in names]
    above = dict.fromkeys(place for parent in dict.fromkeys(path.parent for path in folder.images)
                          for place in (parent, *parent.parents) if place.is_relative_to(folder.root))
    # Several folders may contain images with the same names. Folders of the same split come first.
    order = dict.fromkeys([file.parent, *(place for place in above if split_of(place / '_', folder.root) == split),
                           *above])
    counts = {place: sum(os.path.join(place, text) in known for text in texts) for place in order}
    many = [place for place, count in counts.items() if 2 * count >= max(counts.values())]
    best = max(many, key=lambda place: (len(Path(os.path.commonpath([place, file.parent])).parts), counts[place]))
    places = folder.match(names, file, best, file.parent)
    if not places:
        raise UserError(f'none of the {len(names)} images in {file} exists, such as {names[0]}: put them into '
                        f'{folder.root} or a folder below.')
    return places


def from_panoptic(coco: dict[str, Any], file: Path, folder: Folder, account: Account) -> dict[str, list[Entry]]:
    """Makes masks of things from panoptic PNG files, where R + 256 G + 256^2 B is the id of a segment.

    Segments of stuff are left out. Categories without `isthing` count as things. Raises a UserError if a PNG file or a
    key is missing.
    """
    with as_sentence(f'{file} has panoptic annotations that cannot be read', 'export it again'):
        categories = {to_id(category['id']): dict(id=to_id(category['id']), name=str(category['name']),
                                                  isthing=category.get('isthing'))
                      for category in coco['categories']}
        images = [dict(id=to_id(image['id']), file_name=str(image['file_name'])) for image in coco['images']]
        annotations: list[Entry] = []
        for annotation in coco['annotations']:
            place = folder.locate(annotation['file_name'], file.with_suffix(''), file.parent)
            if place is None:
                raise UserError(f'{file} names {annotation["file_name"]}, but this file does not exist: put it into '
                                f'the folder {file.stem}/ next to {file.name}.')
            account.use('labels', place)
            pixels = open_label_map(place, as_colours=True).values
            for segment in annotation['segments_info']:
                category = categories.get(to_id(segment['category_id']), {})
                if category.get('isthing') == 0:
                    account.seen['objects'] += 1
                    account.leave('objects', 'objects are segments of stuff (isthing is 0)', category['name'])
                    continue
                if category and category['isthing'] is None:
                    account.remark('segments have a category without isthing and are taken for objects (write "isthing"'
                                   ': 0 for those that are none)', category['name'])
                number = segment['id']
                code = (number & 255) << 16 | (number & 255 << 8) | number >> 16  # as label maps have it
                annotations.append(dict(
                    mask(pixels == code), id=len(annotations) + 1, image_id=to_id(annotation['image_id']),
                    category_id=to_id(segment['category_id']), iscrowd=int(segment.get('iscrowd', 0))))
    things = [{key: category[key] for key in ('id', 'name')} for category in categories.values()
              if category['isthing'] != 0]
    return dict(images=images, categories=things, annotations=annotations)
