"""Instances of cell nuclei: 2018 Data Science Bowl, stage 1 (BBBC038)."""
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpvt_mm.errors import UserError
from cpvt_mm.files import write_image, write_text

from .checking.findings import Kind
from .coco import to_annotation
from .converting import read_image, unfinished_folder

CLASS = 'nucleus'
SPLITS = ('train', 'val')


def split_of(name: str) -> str:
    """Returns 'val' for about one name in five, else 'train'; the split depends on the CRC-32 of the name only."""
    return 'val' if zlib.crc32(name.encode()) % 5 == 0 else 'train'


def find_originals(source: Path) -> list[Path]:
    """Finds the folders of `stage1_train`, one for each image: `<id>/images/<id>.png` and `<id>/masks/*.png`.

    Raises:
        UserError: If there are no such folders, or a folder has not exactly one image, or no mask.
    """
    folders = sorted(path.parent for path in source.glob('*/images'))
    if not folders:
        raise UserError(f'{source} has no folders with images/ and masks/ inside: pass the folder that '
                        'stage1_train.zip was unpacked to.')
    for folder in folders:
        images = len(list(folder.glob('images/*.png')))
        if images != 1:
            raise UserError(f'{folder}/images has {images} images, but must have one: unpack the download again.')
        if not any(folder.glob('masks/*.png')):
            raise UserError(f'{folder} has no masks: pass the folder of stage1_train, in which all images have masks.')
    return folders


def read_masks(folder: Path, size: tuple[int, int]) -> list[NDArray[np.bool_]]:
    """Reads the masks of one image, `(H, W)` each; skips empty masks.

    Args:
        folder: A folder from `find_originals`.
        size: Height and width of the image.

    Raises:
        UserError: If a mask cannot be read, or has another size.
    """
    masks = []
    for path in sorted(folder.glob('masks/*.png')):
        # Some files are grey, others RGBA; nuclei are white in all of them.
        mask = np.asarray(read_image(path, Kind.LABEL_MAP).convert('L')) > 127
        if mask.shape != size:
            raise UserError(f'{path} is {mask.shape[0]} x {mask.shape[1]} pixels (height x width), but its image is '
                            f'{size[0]} x {size[1]}: unpack the download again.')
        if mask.any():
            masks.append(mask)
    return masks


def write_nuclei(source: Path, root: Path) -> Iterator[int]:
    """Writes the dataset. It is a generator, so that a tool can show progress.

    RGB images are in `train` and `val`, COCO annotations in `instances_train.json` and `instances_val.json`; see
    `split_of` for the split. `root` is created when the dataset is complete; after an interruption, a new run skips
    finished files.

    Args:
        source: See `find_originals`.
        root: The folder to write.

    Yields:
        The number of images written so far, including those of an interrupted run.

    Raises:
        UserError: If `source` is not such a folder or has a damaged file, or `root` exists already.
    """
    folders = find_originals(source)
    with unfinished_folder(root, source) as unfinished:
        for part in (*SPLITS, 'annotations'):
            (unfinished / part).mkdir(exist_ok=True)
        for done, folder in enumerate(folders, start=1):
            annotations = unfinished / 'annotations' / f'{folder.name}.json'
            if not annotations.exists():  # written last
                [path] = folder.glob('images/*.png')
                image = np.asarray(read_image(path).convert('RGB'))
                instances = [to_annotation(mask) for mask in read_masks(folder, image.shape[:2])]
                write_image(unfinished / split_of(folder.name) / f'{folder.name}.png', image)
                write_text(annotations, json.dumps(dict(size=image.shape[:2], instances=instances)))
            yield done
        for split in SPLITS:
            names = [folder.name for folder in folders if split_of(folder.name) == split]
            write_text(unfinished / f'instances_{split}.json', json.dumps(join(unfinished / 'annotations', names)))
        for path in (unfinished / 'annotations').iterdir():
            path.unlink()
        (unfinished / 'annotations').rmdir()


def join(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Joins the annotations of images, one JSON file each, into one dict in COCO format."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image_id, name in enumerate(names, start=1):
        content = json.loads((folder / f'{name}.json').read_text())
        height, width = content['size']
        images.append(dict(id=image_id, file_name=f'{name}.png', height=height, width=width))
        annotations += [dict(instance, id=len(annotations) + i, image_id=image_id, category_id=1)
                        for i, instance in enumerate(content['instances'], start=1)]
    return dict(images=images, annotations=annotations, categories=[dict(id=1, name=CLASS)])
