"""The splits of a folder of data, and the sizes of its images."""
import random
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from cpvt_mm.errors import UserError, first_line

from .findings import size_as_loaded

SPLITS = ('train', 'val', 'test')
SPLIT = re.compile(r'(train|val|test)(ing|id|idation|\d+)?')


@dataclass
class Split:
    """The images of a split and their annotations.

    Attributes:
        coco: As `read_coco` returns it. Names of images are relative to `images`. For label maps, only `images`.
        images: The folder of the images.
        labels: The COCO file with this content, or the folder of the label maps; None if there is no such file yet.
        is_whole: Whether the split has all images of the folder, or of the file. Defaults to True.
    """
    coco: dict[str, list[dict[str, Any]]]
    images: Path
    labels: Path | None = None
    is_whole: bool = True


@dataclass
class Data:
    """A folder of data: its format, splits, classes and images.

    Attributes:
        form: A value of `FORMATS`.
        root: The folder.
        splits: 'train', and others of 'val' and 'test'.
        classes: The names of the classes, in the order of their labels.
        palette: The colours of label maps; empty if they have none.
        suffixes: The ends of the names of images and label maps.
        channels: The channels of the images.
        notes: Sentences about what is unusual.
    """
    form: str
    root: Path
    splits: dict[str, Split]
    classes: list[str] = field(default_factory=list)
    palette: list[tuple[int, ...]] = field(default_factory=list)
    suffixes: tuple[str, str] = ('.jpg', '.png')
    channels: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def split_of(path: Path, root: Path) -> str:
    """Returns 'train', 'val' or 'test' after a folder of the path, or 'train' if none has such a name."""
    found = [match[1] for part in path.relative_to(root).parts[:-1] if (match := SPLIT.fullmatch(part.lower()))]
    return found[-1] if found else 'train'


def read_sizes(paths: Sequence[Path]) -> list[tuple[int, int, int]]:
    """Reads width, height and channels of images from the heads of the files.

    Raises:
        UserError: If one is no image.
    """
    def read(path: Path) -> tuple[int, int, int]:
        try:
            with Image.open(path) as image:
                height, width = size_as_loaded(image)
                return width, height, 3 if image.mode == 'P' else len(image.getbands())
        except (UnidentifiedImageError, OSError) as error:
            raise UserError(f'image {path} cannot be read ({first_line(error)}): put the whole file there, or remove '
                            'it and its annotations.') from error

    with ThreadPoolExecutor() as threads:
        return list(threads.map(read, paths))


def divide(data: Data, share: float, seed: int) -> tuple[Split, Split]:
    """Divides the images to train on: returns those that are left, and a share of them for validation.

    Raises:
        UserError: If one of the two would be empty.
    """
    split = data.splits['train']
    images = split.coco['images']
    number = max(1, round(share * len(images)))
    if not 0 < share < 1 or number >= len(images):
        raise UserError(f'a share of {share} of {len(images)} images cannot be for validation: take more images, or '
                        'name a share between 0 and 1, a folder or a file with --val.')
    chosen = set(random.Random(seed).sample(range(len(images)), number))
    parts = []
    for is_val in (False, True):
        own = [image for index, image in enumerate(images) if (index in chosen) == is_val]
        ids = {image['id'] for image in own}
        coco = dict(split.coco, images=own, annotations=[
            annotation for annotation in split.coco['annotations'] if annotation['image_id'] in ids])
        parts.append(Split(coco, split.images, split.labels, is_whole=False))
    return parts[0], parts[1]
