"""YOLO: a txt file for each image."""
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from openmmlab_data.form.dataset import LabelledData, LabelledObject, Picture
from openmmlab_data.form.folder import IMAGE_WORDS, Folder, read_text, words_of
from openmmlab_data.form.objects import LARGEST, box, polygons
from openmmlab_data.form.splits import complete
from openmmlab_runs.data.datasets import SPLITS
from openmmlab_runs.errors import UserError
from openmmlab_runs.texts import shown, told

from .layouts import YOLO, Reading
from .yolo_description import MOST_CLASSES, Description, describe_yolo


def labels_of_yolo(folder: Folder) -> list[Path]:
    """Returns the txt files that belong to an image and begin with a number, or are empty."""
    def is_label(path: Path) -> bool:
        with path.open('rb') as file:
            return bool(re.match(rb'([-+.\d]|$)', file.read(256).removeprefix(b'\xef\xbb\xbf').strip()))

    return [path for path in folder.of('.txt') if folder.image_of(path) and is_label(path)]


def read_yolo(reading: Reading) -> LabelledData:
    """Reads txt files; a UserError for another format, or unnamed classes. Images without one have no objects.

    Lines are `class x y width height`, the centre first, or `class x y x y x y ...`, a polygon or the corners of an
    oriented box, in shares of the image. A score at the end, and keypoints, are left out.
    """
    folder, files = reading.folder, reading.files
    data, about = LabelledData(YOLO, folder.root), describe_yolo(folder, reading.named)
    if outside := [place for places in (about.places or {}).values() for place in places
                   if not place.is_relative_to(folder.root)]:
        folder = Folder(folder.root, [_above(place) for place in outside])
        files = labels_of_yolo(folder)
    of_image, alone = folder.pair(files)
    splits = _splits(about, folder)
    near = {image.parent for image in of_image}
    images = sorted({image for paths in splits.values() for image in paths}) if about.places is not None else [
        path for path in folder.images if path.parent in near]
    left = sorted({*map(folder.name, folder.images)}.difference(map(folder.name, images)))
    if about.places is not None:
        data.notes += told(left, f'images are in no split that {about.source or "the lists"} names and are left out')
    data.notes += [*about.notes, *told(alone, 'txt files have no image of their own and are left out'),
                   *told([folder.name(path) for path in images if path not in of_image],
                         'images have no txt file, so they have no objects')]
    pictures = data.measured([Picture(image, of_image.get(image)) for image in images])
    highest, left_out = -1, Counter[str]()
    for picture in pictures:
        for label, keys in _lines(picture, about, left_out):
            highest = max(highest, label)
            picture.objects.append(LabelledObject(about.names.get(label, f'class_{label}'), keys))
    data.notes += [f'{count} objects have {what}, which is left out.' for what, count in left_out.items()]
    if not about.names:
        data.notes.append('No file has the names of the classes, so they are numbers: write them to classes.txt, one '
                          'in each line.')
    return complete(data, pictures, folder, splits,
                    [*about.names.values()] or [f'class_{index}' for index in range(highest + 1)])


def _splits(about: Description, folder: Folder) -> dict[str, list[Path]]:
    """Returns the images of the splits that are described; a UserError if one has none."""
    splits = {}
    for split in SPLITS:
        if (places := (about.places or {}).get(split)) is not None:
            own = set(places)
            splits[split] = [image for image in folder.images if image in own or not own.isdisjoint(image.parents)]
            if not splits[split]:
                raise UserError(f'{about.source or folder.root} names {places[0] if places else "nothing"} for '
                                f'{split}, which has no images: put them there, or correct it.')
    return splits


def _above(place: Path) -> Path:
    """Returns the folder that has both images and labels, for a folder of images."""
    parts = (place if place.is_dir() else place.parent).parts
    depth = next((depth for depth in range(len(parts) - 1, 0, -1) if set(words_of(parts[depth])) & IMAGE_WORDS), None)
    return Path(*parts[:depth])


def _lines(picture: Picture, about: Description, left_out: Counter[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the label and the keys of each object."""
    lines = read_text(picture.annotation).splitlines() if picture.annotation else ()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f'{picture.annotation} has {shown(line)} in line {number}'
        try:
            label, *numbers = [float(word) for word in line.replace(',', ' ').split()]
            if not all(abs(one) <= LARGEST for one in (label, *numbers)) or label % 1 or label < 0:
                raise ValueError
            keys = _object(numbers, picture.size, about.keypoints, left_out)
        except ValueError as error:
            raise UserError(f'{where}, but a line is a class, and a box or a polygon: correct it.') from error
        if label >= MOST_CLASSES or (about.names and label not in about.names):
            most = len(about.names) or MOST_CLASSES
            raise UserError(f'{where}, but {about.source or "YOLO here"} has {most} names: correct either.')
        yield int(label), keys


def _object(numbers: list[float], size: tuple[int, int], keypoints: int, left_out: Counter[str]) -> dict[str, Any]:
    rest = len(numbers) - 4
    if keypoints and rest in (keypoints, keypoints + 1):
        left_out['keypoints'] += 1
        numbers = numbers[:4]
    elif len(numbers) >= 5 and len(numbers) % 2:  # of predictions that were saved
        left_out['a score'] += 1
        numbers = numbers[:-1]
    if len(numbers) == 4:
        x, y, w, h = np.multiply(numbers, (size[0], size[1], size[0], size[1])).tolist()
        return box(x - w / 2, y - h / 2, x + w / 2, y + h / 2, size)
    if len(numbers) < 6:
        raise ValueError
    return polygons([np.reshape(numbers, (-1, 2)) * size], size)
