"""Reads annotations that are not in COCO's layout: boxes of Pascal VOC and YOLO, polygons of YOLO, and label maps."""
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os.path import commonpath
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import yaml
from PIL import Image, UnidentifiedImageError

from cpvt_mm.errors import UserError, first_line

from .splits import SPLITS, Data, Split, read_sizes, split_of

Splits = dict[Path, str]
LABEL_MAPS = 'label maps'
NO_CLASS = 255


@dataclass
class Sample:
    """An image with its annotation file.

    Attributes:
        image: The image.
        annotation: Its XML or txt file; None if it has no objects.
        size: Width and height in pixels.
        split: 'train', 'val' or 'test'; '' for an image that no list names. Defaults to 'train'.
        objects: The class of each object, and its keys in COCO's layout.
    """
    image: Path
    annotation: Path | None
    size: tuple[int, int]
    split: str = 'train'
    objects: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def read_voc(samples: Sequence[Sample], root: Path) -> tuple[list[str], Splits]:
    """Reads XML files into the samples, and the splits of `ImageSets/Main`.

    Corners count from 1 and belong to the box. Difficult objects become crowds, which losses and metrics ignore.

    Returns:
        The classes, sorted, and the split of each image that has one; empty without `ImageSets`.

    Raises:
        UserError: If a file is not in this format.
    """
    for sample in samples:
        try:
            for found in ElementTree.parse(str(sample.annotation)).iter('object'):
                left, top, right, bottom = (float(found.findtext(f'bndbox/{key}', ''))
                                            for key in ('xmin', 'ymin', 'xmax', 'ymax'))
                box = _box(left - 1, top - 1, right, bottom, sample.size)
                sample.objects.append((found.findtext('name', '').strip(),
                                       dict(box, iscrowd=int(found.findtext('difficult') == '1'))))
        except (ElementTree.ParseError, ValueError) as error:
            raise UserError(f'{sample.annotation} is not an annotation of Pascal VOC ({first_line(error)}): correct it.'
                            ) from error
    lists = {split: file for split in SPLITS for file in root.rglob(f'ImageSets/Main/{split}.txt')}
    names = {line.split()[0]: split for split, file in lists.items() for line in file.read_text().splitlines() if line}
    return (sorted({name for sample in samples for name, _ in sample.objects}),
            {sample.image: names.get(sample.image.stem, '') for sample in samples} if names else {})


def read_yolo(samples: Sequence[Sample], root: Path) -> tuple[list[str], Splits]:
    """Reads txt files into the samples, and names and splits of data.yaml.

    Lines are `class x y width height`, the centre first, or `class x y x y x y ...`, a polygon, in shares of the image.

    Returns:
        The classes, and the split of each image that lies in a folder of data.yaml.

    Raises:
        UserError: If a file is not in this format, or has a class without a name.
    """
    content, file = _read_yaml(root)
    names = content.get('names') or {}
    names = dict(enumerate(names)) if isinstance(names, list) else names
    highest = -1
    for sample in samples:
        lines = sample.annotation.read_text().splitlines() if sample.annotation else []
        for number, line in enumerate(lines, start=1):
            try:
                label, *numbers = [float(word) for word in line.split()] or [-1.]
                keys = _yolo_object(numbers, sample.size) if numbers else None
            except ValueError as error:
                raise UserError(f'{sample.annotation} has {line!r} in line {number}, but a line is a class, and a box '
                                'or a polygon: correct it.') from error
            if keys:
                if names and label not in names:
                    raise UserError(f'{sample.annotation} has class {label:g} in line {number}, but {file} has '
                                    f'{len(names)} names: correct either.')
                highest = max(highest, int(label))
                sample.objects.append((str(names.get(int(label), f'class_{label:g}')), keys))
    splits = {sample.image: split for split in SPLITS if isinstance(content.get(split), str)
              for folder in [(root / str(content.get('path') or '') / content[split]).resolve()]
              for sample in samples if sample.image.is_relative_to(folder)}
    return [str(name) for name in names.values()] or [f'class_{index}' for index in range(highest + 1)], splits


def _read_yaml(root: Path) -> tuple[dict[str, Any], Path | None]:
    for path in sorted([*root.glob('*.yaml'), *root.glob('*.yml')]):
        try:
            content = yaml.safe_load(path.read_text())
        except yaml.YAMLError as error:
            raise UserError(f'{path} is not YAML ({first_line(error)}): correct it.') from error
        if isinstance(content, dict) and content.get('names'):
            return content, path
    return {}, None


def _yolo_object(numbers: list[float], size: tuple[int, int]) -> dict[str, Any]:
    width, height = size
    if len(numbers) == 4:
        x, y, w, h = numbers[0] * width, numbers[1] * height, numbers[2] * width, numbers[3] * height
        return dict(_box(x - w / 2, y - h / 2, x + w / 2, y + h / 2, size), iscrowd=0)
    if len(numbers) < 6 or len(numbers) % 2:
        raise ValueError
    xs, ys = np.array(numbers[::2]) * width, np.array(numbers[1::2]) * height
    area = abs(xs @ np.roll(ys, 1) - ys @ np.roll(xs, 1)) / 2  # the shoelace formula
    polygon = np.stack([xs, ys], axis=1).round(2).ravel().tolist()
    return dict(_box(xs.min(), ys.min(), xs.max(), ys.max(), size), iscrowd=0, area=float(area), segmentation=[polygon])


def _box(left: float, top: float, right: float, bottom: float, size: tuple[int, int]) -> dict[str, Any]:
    """Returns `bbox` and `area` of a box that is clipped to its image."""
    left, top, right, bottom = max(left, 0), max(top, 0), min(right, size[0]), min(bottom, size[1])
    box = [round(float(value), 2) for value in (left, top, right - left, bottom - top)]
    return dict(bbox=box, area=box[2] * box[3])


def to_coco(samples: Sequence[Sample], classes: Sequence[str], root: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns samples in COCO's layout, with names of images relative to `root`, and all classes as categories."""
    ids = {name: index for index, name in enumerate(classes, start=1)}
    images = [dict(id=index, file_name=sample.image.relative_to(root).as_posix(), width=sample.size[0],
                   height=sample.size[1]) for index, sample in enumerate(samples, start=1)]
    objects = [dict(keys, image_id=index, category_id=ids[name])
               for index, sample in enumerate(samples, start=1) for name, keys in sample.objects]
    return dict(images=images, categories=[dict(id=index, name=name) for name, index in ids.items()],
                annotations=[dict(keys, id=index) for index, keys in enumerate(objects, start=1)])


def read_label_maps(pairs: list[tuple[Path, Path]], root: Path, images: Iterable[Path]) -> Data:
    """Reads label maps, each with its image, in a folder with `images`.

    Raises:
        UserError: If an image has no label map, or label maps are not as mmseg needs them.
    """
    by_image = {image: label_map for label_map, image in pairs}
    folders = {image.parent for image in by_image}
    labels = set(by_image.values())
    if alone := [path for path in sorted(images)
                 if path.parent in folders and path not in by_image and path not in labels]:
        raise UserError(f'{len(alone)} images have no label map, such as {alone[0]}: add the label maps, or move the '
                        'images away.')
    ends = {(image.suffix, label.name.removeprefix(image.stem)) for image, label in by_image.items()}
    if len(ends) > 1:
        raise UserError(f'{root} has images and label maps whose names end in {sorted(ends)}: give all the same ends, '
                        'because mmseg reads one kind.')
    data = Data(LABEL_MAPS, root, {}, suffixes=ends.pop())
    with ThreadPoolExecutor() as threads:
        values = np.unique(np.concatenate(list(threads.map(_values, sorted(labels)))))
    data.palette, data.classes = _names_of_labels(values[values != NO_CLASS], root, sorted(labels)[0])
    for split in SPLITS:
        found = sorted(image for image in by_image if split_of(image, root) == split)
        if found:
            folder = Path(commonpath([image.parent for image in found]))
            sizes = read_sizes(found)
            data.channels |= {channels for *_, channels in sizes}
            samples = [Sample(image, by_image[image], size[:2]) for image, size in zip(found, sizes, strict=True)]
            data.splits[split] = Split(to_coco(samples, [], folder), folder,
                                       Path(commonpath([by_image[image].parent for image in found])))
    return data


def _values(path: Path) -> np.ndarray:
    try:
        labels = np.asarray(Image.open(path))
    except (UnidentifiedImageError, OSError) as error:
        raise UserError(f'label map {path} cannot be read ({first_line(error)}): put the whole file there.') from error
    if labels.ndim != 2:
        raise UserError(f'label map {path} has {labels.shape[-1]} channels, but must have the number of a class at '
                        'each pixel: convert its colours to numbers.')
    return np.unique(labels)


def _names_of_labels(labels: np.ndarray, root: Path, label_map: Path) -> tuple[list[tuple[int, ...]], list[str]]:
    """Returns the palette of a label map, and the classes after classes.txt, or after their numbers."""
    number = int(labels.max()) + 1 if len(labels) else 0
    if number < 2 or number > NO_CLASS:
        raise UserError(f'{root} has label maps with the values {", ".join(map(str, labels))} and perhaps 255, but '
                        'classes are 0 to 254, at least two, and 255 means no class: correct the label maps.')
    names = [f'class_{index}' for index in range(number)]
    for file in (root / 'classes.txt', root / 'labels.txt'):
        if file.is_file():
            names = file.read_text().split('\n')
            names = [name.strip() for name in names if name.strip()]
            if len(names) < number:
                raise UserError(f'{file} has {len(names)} names, but label maps have {number} classes: add the others.')
    palette = Image.open(label_map).getpalette() or []
    colours = [tuple(palette[3 * index:3 * index + 3]) for index in range(len(names))]
    return colours if len(palette) >= 3 * len(names) else [], names
