"""CamVid, in the version of the SegNet tutorial: street scenes with label maps of 11 classes."""
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cpvt_mm.errors import UserError
from cpvt_mm.files import write_image

from .checking.findings import Kind
from .converting import read_image, unfinished_folder

CLASSES = ('sky', 'building', 'pole', 'road', 'pavement', 'tree', 'sign', 'fence', 'car', 'pedestrian', 'cyclist')
PALETTE = ((128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (0, 0, 192), (128, 128, 0), (192, 128, 128),
           (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192))
SPLITS = ('train', 'val', 'test')
VOID, IGNORED = 11, 255  # the label for no class in the download, and in mmseg


def find_originals(source: Path) -> list[tuple[str, Path, Path]]:
    """Finds the images of `train`, `val` and `test`, and their label maps in `trainannot`, `valannot` and `testannot`.

    Returns:
        The split, the image and the label map of each.

    Raises:
        UserError: If a folder has no images, or an image has no label map.
    """
    found = []
    for split in SPLITS:
        images = sorted((source / split).glob('*.png'))
        if not images:
            raise UserError(f'{source / split} has no images (.png): pass the folder CamVid of the SegNet tutorial, '
                            'which contains train, trainannot, val, valannot, test and testannot.')
        for image in images:
            labels = source / f'{split}annot' / image.name
            if not labels.exists():
                raise UserError(f'{labels}, the label map of {image}, does not exist: download the data again.')
            found.append((split, image, labels))
    return found


def read_labels(path: Path) -> NDArray[np.uint8]:
    """Reads a label map, `(H, W)`, uint8: classes 0 to 10, and 255 for pixels without a class.

    Raises:
        UserError: If the file cannot be read, or has other values.
    """
    labels = np.asarray(read_image(path, Kind.LABEL_MAP))
    if labels.ndim != 2 or labels.max() > VOID:
        what = f'has {labels.shape[-1]} channels' if labels.ndim != 2 else f'has the value {labels.max()}'
        raise UserError(f'{path} {what}, but must be a grey image of classes 0 to 10, and 11 for no class: use the '
                        'download of the SegNet tutorial, whose label maps contain classes instead of colours.')
    return np.where(labels == VOID, IGNORED, labels).astype(np.uint8)


def write_camvid(source: Path, root: Path) -> Iterator[int]:
    """Writes the dataset. It is a generator, so that a tool can show progress.

    The layout is that of mmseg: `images/{train,val,test}`, JPEG of quality 95, and `annotations/{train,val,test}`,
    label maps. `root` is created when the dataset is complete. After an interruption, a new run skips finished files.

    Args:
        source: See `find_originals`.
        root: The folder to write.

    Yields:
        The number of images written so far, including those of an interrupted run.

    Raises:
        UserError: If `source` is not such a folder or has a damaged file, or `root` exists already.
    """
    originals = find_originals(source)
    with unfinished_folder(root, source) as unfinished:
        for split in SPLITS:
            for part in ('images', 'annotations'):
                (unfinished / part / split).mkdir(parents=True, exist_ok=True)
        for done, (split, image_path, labels_path) in enumerate(originals, start=1):
            written = unfinished / 'annotations' / split / labels_path.name
            if not written.exists():  # written last
                image = np.asarray(read_image(image_path).convert('RGB'))
                labels = read_labels(labels_path)
                if labels.shape != image.shape[:2]:
                    raise UserError(f'{labels_path} is {labels.shape[0]} x {labels.shape[1]} pixels (height x width), '
                                    f'but its image is {image.shape[0]} x {image.shape[1]}: download the data again.')
                write_image(unfinished / 'images' / split / f'{image_path.stem}.jpg', image)
                write_image(written, labels)
            yield done
