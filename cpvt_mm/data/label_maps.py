"""Reads label maps: PNG files with the number of a class at each pixel."""
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from os.path import commonpath
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from cpvt_mm.errors import UserError, first_line

from .splits import SPLITS, Data, Split, read_sizes, split_of

LABEL_MAPS = 'label maps'
NO_CLASS = 255


def read_label_maps(pairs: list[tuple[Path, Path]], root: Path, images: Iterable[Path]) -> Data:
    """Reads label maps.

    Args:
        pairs: Label maps, each with its image.
        root: The folder of the data.
        images: All images of the folder.

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
            coco = [dict(id=index, file_name=str(image.relative_to(folder)), width=width, height=height)
                    for index, (image, (width, height, _)) in enumerate(zip(found, sizes, strict=True))]
            data.splits[split] = Split(dict(images=coco, annotations=[], categories=[]), folder,
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
