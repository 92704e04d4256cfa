"""Converts CamVid, or the nuclei of a Data Science Bowl, to the layouts that the configs expect."""
import argparse
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.progress import track

from lab.commands.toy_shapes import to_annotation, whole_folder
from openmmlab_tools.data.findings import Kind
from openmmlab_tools.data.image_files import faults_of
from openmmlab_tools.errors import UserError, exit_on_error
from openmmlab_tools.files import write_image, write_text

CAMVID_CLASSES = ('sky', 'building', 'pole', 'road', 'pavement', 'tree', 'sign', 'fence', 'car', 'pedestrian',
                  'cyclist')
CAMVID_PALETTE = ((128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (0, 0, 192), (128, 128, 0),
                  (192, 128, 128), (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192))
CAMVID_SPLITS = ('train', 'val', 'test')
VOID, IGNORED = 11, 255  # the label for no class in the download of CamVid, and in mmseg


def find_camvid(source: Path) -> list[tuple[str, Path, Path]]:
    """Finds the images of CamVid, in the version of the SegNet tutorial: street scenes with label maps of 11 classes.

    Images are in `train`, `val` and `test`, their label maps in `trainannot`, `valannot` and `testannot`. Returns the
    split, the image and the label map of each.
    """
    triples = []
    for split in CAMVID_SPLITS:
        images = sorted((source / split).glob('*.png'))
        if not images:
            raise UserError(f'{source / split} has no images (.png): pass the folder CamVid of the SegNet tutorial, '
                            'which contains train, trainannot, val, valannot, test and testannot.')
        for image in images:
            labels = source / f'{split}annot' / image.name
            if not labels.exists():
                raise UserError(f'{labels}, the label map of {image}, does not exist: download the data again.')
            triples.append((split, image, labels))
    return triples


def write_camvid(source: Path, root: Path) -> Iterator[int]:
    """Writes the CamVid images in `source` in mmseg's layout, and yields the number of images written so far.

    The layout consists of `images/{train,val,test}`, JPEG files with quality 95, and `annotations/{train,val,test}`,
    label maps. `root` is created when the dataset is complete.
    """
    with whole_folder(root) as unfinished:
        for done, (split, image_path, labels_path) in enumerate(find_camvid(source), start=1):
            image, labels = np.asarray(_read_image(image_path).convert('RGB')), _read_labels(labels_path)
            _check_size(labels_path, labels, image.shape[:2])
            for part, name, pixels in (('images', f'{image_path.stem}.jpg', image), ('annotations', labels_path.name,
                                                                                     labels)):
                (unfinished / part / split).mkdir(parents=True, exist_ok=True)
                write_image(unfinished / part / split / name, pixels)
            yield done


def _read_labels(path: Path) -> NDArray[np.uint8]:
    """Reads a label map of CamVid, `(H, W)`, uint8: classes 0 to 10, and 255 for pixels without a class."""
    labels = np.asarray(_read_image(path, Kind.LABEL_MAP))
    if labels.ndim != 2 or labels.max() > VOID:
        fault = f'has {labels.shape[-1]} channels' if labels.ndim != 2 else f'has the value {labels.max()}'
        raise UserError(f'{path} {fault}, but must be a grey image of classes 0 to 10, and 11 for no class: use the '
                        'download of the SegNet tutorial, whose label maps contain classes instead of colours.')
    return np.where(labels == VOID, IGNORED, labels).astype(np.uint8)


def find_nuclei(source: Path) -> list[Path]:
    """Finds the folders of the 2018 Data Science Bowl, stage 1 (BBBC038): instances of cell nuclei.

    `stage1_train` has a folder for each image: `<id>/images/<id>.png` and `<id>/masks/*.png`.
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


def split_of(name: str) -> str:
    """Returns 'val' for about one name in five, else 'train'; the split depends on the CRC-32 of the name only."""
    return 'val' if zlib.crc32(name.encode()) % 5 == 0 else 'train'


def write_nuclei(source: Path, root: Path) -> Iterator[int]:
    """Writes the nuclei, found in `source`; yields the number of images written so far.

    RGB images are in `train` and `val` (see `split_of`), COCO annotations in `instances_train.json` and
    `instances_val.json`. `root` is created when the dataset is complete.
    """
    with whole_folder(root) as unfinished:
        contents: dict[str, dict[str, list]] = {split: dict(images=[], annotations=[], categories=[
            dict(id=1, name='nucleus')]) for split in ('train', 'val')}
        for split in contents:
            (unfinished / split).mkdir()
        for done, folder in enumerate(find_nuclei(source), start=1):
            [path] = folder.glob('images/*.png')
            image, split = np.asarray(_read_image(path).convert('RGB')), split_of(folder.name)
            write_image(unfinished / split / f'{folder.name}.png', image)
            images, annotations, _ = contents[split].values()
            images.append(dict(id=len(images) + 1, file_name=f'{folder.name}.png', height=image.shape[0],
                               width=image.shape[1]))
            for mask in _read_masks(folder, image.shape[:2]):
                annotations.append(to_annotation(mask, id=len(annotations) + 1, image_id=len(images), category_id=1))
            yield done
        for split, content in contents.items():
            write_text(unfinished / f'instances_{split}.json', json.dumps(content))


def _read_masks(folder: Path, size: tuple[int, int]) -> Iterator[NDArray[np.bool_]]:
    """Reads the masks of an image, `(H, W)` each; `size` is (height, width). Skips empty masks."""
    for path in sorted(folder.glob('masks/*.png')):
        # Some files are grey, others RGBA; nuclei are white in all of them.
        mask = np.asarray(_read_image(path, Kind.LABEL_MAP).convert('L')) > 127
        _check_size(path, mask, size)
        if mask.any():
            yield mask


def _check_size(path: Path, labels: NDArray, size: tuple[int, int]) -> None:
    if labels.shape != size:
        raise UserError(f'{path} is {labels.shape[0]} x {labels.shape[1]} pixels (height x width), but its image is '
                        f'{size[0]} x {size[1]}: unpack the download again.')


def _read_image(path: Path, kind: Kind = Kind.IMAGE) -> Image.Image:
    """Reads an image of a download, which must have 8 bits per channel, or a `Kind.LABEL_MAP`."""
    for finding in faults_of(str(path), kind):
        raise UserError(f'{finding.sentence}: unpack the download again.')
    return Image.open(path)


# For each data set, what finds the originals, and what writes them.
DATASETS: dict[str, tuple[Callable[[Path], Sequence[object]], Callable[[Path, Path], Iterator[int]]]] = dict(
    camvid=(find_camvid, write_camvid), nuclei=(find_nuclei, write_nuclei))


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('dataset', choices=DATASETS, help='what to convert')
    parser.add_argument('source', type=Path, help='the folder CamVid of the SegNet tutorial (train, trainannot, ...), '
                        'or that of stage1_train.zip, which has a folder for each image of nuclei')
    parser.add_argument('root', type=Path, nargs='?', help='the folder to write (default: data/<dataset>)')
    args = parser.parse_args()
    find, write = DATASETS[args.dataset]
    root = args.root or Path('data') / args.dataset
    for _ in track(write(args.source, root), f'Writing {root.name}', len(find(args.source))):
        pass
