"""YOLO: a txt file for each image."""
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from openmmlab_tools.data.datasets import SPLITS
from openmmlab_tools.errors import FileFault, UserError
from openmmlab_tools.readers.form.account import Account
from openmmlab_tools.readers.form.dataset import LabelledData, Picture
from openmmlab_tools.readers.form.folder import IMAGE_WORDS, Folder, head, read_lines, read_text, words_of
from openmmlab_tools.readers.form.objects import LARGEST, Shape
from openmmlab_tools.readers.form.records import Record, RecordObject, fill
from openmmlab_tools.readers.form.split_lists import list_of
from openmmlab_tools.readers.form.splits import complete
from openmmlab_tools.texts import shown, told

from .layouts import YOLO, Reading
from .tools import LINES, of_lines, text_of
from .yolo_description import MOST_CLASSES, NAME_FILES, Description, describe_yolo

MARGIN = 0.1  # of an image: how far outside an object may lie, as oriented boxes and polygons at a border do
MOST_SHARE = 1 + MARGIN


def labels_of_yolo(folder: Folder) -> list[Path]:
    """Returns the txt files of a YOLO data set; an empty list if no file of an image begins with a number.

    These are files that begin with a number or are empty, and that belong to an image or are in a folder with such
    files, and other txt files of images in these folders. If another tool has written the file of an image, its folder
    is skipped, with a note if files of YOLO are in it.
    """
    files = [path for path in folder.with_suffix('.txt') if path.name.lower() not in NAME_FILES]
    of_images = {path for path in files if folder.image_of(path)}
    numbers, filled, foreign = set[Path](), set[Path](), dict[Path, str]()
    for path in [path for path in files if path in of_images or not list_of(path, folder.root)]:
        start = head(path, LINES)
        tool = of_lines(path.name, start) if path in of_images else None
        if tool:
            foreign.setdefault(path.parent, tool.says(path))
        elif first := re.match(r'[-+.\d]|$', text_of(start)):
            numbers.add(path)
            filled |= {path} if first[0] else set()
    folder.left_out += [f'{foreign[place]}. So all files of {folder.name(place)} are skipped.'
                        for place in sorted({path.parent for path in filled & of_images} & foreign.keys())]
    places, labels = {path.parent for path in numbers & of_images} - foreign.keys(), numbers | of_images
    return [path for path in files if path.parent in places and path in labels]


def read_yolo(reading: Reading) -> LabelledData:
    """Reads txt files; a UserError for another format, or unnamed classes. Images without a txt file have no objects.

    Lines are `class x y width height`, the centre first, or `class x y x y x y ...`, a polygon or the corners of an
    oriented box, in shares of the image. The score of a box, and keypoints, are left out.
    """
    folder, files = reading.folder, reading.files
    data, about = LabelledData(YOLO, folder.root), describe_yolo(folder, reading.named)
    if outside := [place for places in (about.places or {}).values() for place in places
                   if not place.is_relative_to(folder.root)]:
        folder = Folder(folder.root, [_above(place) for place in outside])
        files = labels_of_yolo(folder)
        folder.labels = {*files}
    of_image, alone, second = folder.pair(files)
    splits, account = _splits(about, folder), data.account
    account.use('descriptions', *about.files)
    near = {image.parent for image in of_image}
    images = sorted({image for paths in splits.values() for image in paths}) if about.places is not None else [
        path for path in folder.images if path.parent in near]
    left = sorted({*folder.images}.difference(images)) if about.places is not None else []
    account.seen['images'] += len(images) + len(alone) + len(second) + len(left)
    for reason, paths, unused in (
            ('txt files have no image of their own', alone, [*alone]),
            ('txt files belong to images that already have another file', second, [*second]),
            (f'images are in no split that {about.path} names', left, [*map(of_image.get, left)])):
        account.leave_all('images', reason, [*map(folder.name, paths)])
        for path in filter(None, unused):
            lines = len(read_lines(path))
            account.seen['objects'] += lines
            account.leave('objects', 'objects are of txt files that are not used', folder.name(path), lines)
    data.notes += [*about.notes, *told([folder.name(path) for path in images if path not in of_image],
                                       'images have no txt file, so they have no objects')]
    pictures = data.measured([Picture(image, of_image.get(image)) for image in images])
    for picture in pictures:
        fill(picture, Record(str(picture.annotation), (), _record_objects(picture.annotation, about, account)), account)
    last = max((int(instance.name.removeprefix('class_')) for picture in pictures for instance in picture.objects
                if not about.names), default=-1)
    if not about.names:
        data.notes.append('No file contains the names of the classes, so they are numbers. Write the names to '
                          'classes.txt, one in each line.')
    return complete(data, pictures, folder, splits,
                    [*about.names.values()] or [f'class_{label}' for label in range(last + 1)])


def _splits(about: Description, folder: Folder) -> dict[str, list[Path]]:
    """Returns the images of the splits in the description; raises a UserError for a split without images."""
    splits = {}
    for split in SPLITS:
        if (places := (about.places or {}).get(split)) is not None:
            folders = set(places)
            splits[split] = [image for image in folder.images
                             if image in folders or not folders.isdisjoint(image.parents)]
            if not splits[split]:
                raise UserError(f'{about.path} names {places[0]} for {split}, but there are no images: put them '
                                f'there, or correct the key {split}.')
    return splits


def _above(place: Path) -> Path:
    """Returns the folder that has both images and labels, for a folder of images."""
    parts = (place if place.is_dir() else place.parent).parts
    depth = next((depth for depth in range(len(parts) - 1, 0, -1) if set(words_of(parts[depth])) & IMAGE_WORDS), None)
    return Path(*parts[:depth])


def _record_objects(file: Path | None, about: Description, account: Account) -> Iterator[RecordObject]:
    if file is None:
        return
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        if not line.strip():
            continue
        fault = partial(_fault, file, line, number)
        try:
            label, *numbers = [float(word) for word in line.replace(',', ' ').split()]
        except ValueError as error:
            raise fault('but a line is numbers: correct it') from error
        if not all(abs(number) <= LARGEST for number in (label, *numbers)) or label % 1 or label < 0:
            raise fault('but a line must contain the number of a class, and finite numbers: correct it')
        if label >= MOST_CLASSES or (about.names and label not in about.names):
            most = len(about.names) or MOST_CLASSES
            raise fault(f'but {about.source or "YOLO here"} has {most} names: correct either')
        name = about.names.get(int(label), f'class_{int(label)}')
        yield RecordObject(name, _shape(numbers, about.keypoints, fault, account))


def _fault(file: Path, line: str, number: int, detail: str) -> FileFault:
    return FileFault(file, f'has {shown(line)} in line {number}, {detail}')


def _shape(numbers: list[float], keypoints: int, fault: Callable[[str], FileFault], account: Account) -> Shape:
    """Returns the shape for the numbers of a line; a UserError if they cannot be shares of an image."""
    if keypoints and len(numbers) - 4 in (keypoints, keypoints + 1):
        account.fields['keypoints'] += 1
        numbers = numbers[:4]
    elif _is_pose(numbers):
        raise fault(f'which looks like a box with {len(numbers) // 3 - 1} keypoints of three numbers: write kpt_shape: '
                    f'[{len(numbers) // 3 - 1}, 3] into data.yaml, and only boxes are read')
    elif len(numbers) == 5 and 0 <= numbers[4] <= 1:  # of predictions that were saved
        account.fields['score'] += 1
        numbers = numbers[:4]
    if len(numbers) != 4 and (len(numbers) < 6 or len(numbers) % 2):
        raise fault('but after the class, a line must have four numbers for a box, or at least three pairs of numbers '
                    'for a polygon, without a score: correct it')
    if most := max((number for number in map(abs, numbers) if number > MOST_SHARE), default=0.):
        advice = 'like pixels: divide them by the width and height' if most > 2 else 'too large: correct it'
        raise fault(f'but numbers are shares of the image, from 0 to 1, and {most:g} looks {advice}')
    if len(numbers) == 4:
        x, y, w, h = numbers
        if min(w, h) < 0:
            raise fault('but a width or height is not below 0: correct it')
        return Shape((x - w / 2, y - h / 2, x + w / 2, y + h / 2), in_shares=True)
    return Shape(parts=[np.reshape(numbers, (-1, 2))], in_shares=True)


def _is_pose(numbers: Sequence[float]) -> bool:
    """Returns whether the numbers are a box, and keypoints in it with a visibility of 0, 1 or 2."""
    if len(numbers) < 7 or len(numbers) % 3 != 1:
        return False
    points, (x, y, width, height) = np.reshape(numbers[4:], (-1, 3)), numbers[:4]
    seen = points[points[:, 2] > 0]
    return bool(np.isin(points[:, 2], (0, 1, 2)).all() and (
        np.abs(seen[:, :2] - (x, y)) <= np.array((width, height)) / 2 + MARGIN).all())
