"""Converts CamVid, or the nuclei of a Data Science Bowl, to the layouts that the configs expect.

Run it again to continue after an interruption.
"""
import argparse
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.progress import track

from lab.commands.toy_shapes import to_annotation
from openmmlab_runs.cli import resumable
from openmmlab_runs.data.findings import Finding, Kind, decode
from openmmlab_runs.errors import UserError, exit_on_error
from openmmlab_runs.files import held, remove_leftovers, write_image, write_text
from openmmlab_runs.texts import printable

CAMVID_CLASSES = ('sky', 'building', 'pole', 'road', 'pavement', 'tree', 'sign', 'fence', 'car', 'pedestrian',
                  'cyclist')
CAMVID_PALETTE = ((128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (0, 0, 192), (128, 128, 0),
                  (192, 128, 128), (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192))
CAMVID_SPLITS = ('train', 'val', 'test')
VOID, IGNORED = 11, 255  # the label for no class in the download of CamVid, and in mmseg
NUCLEI_SPLITS = ('train', 'val')


def find_camvid(source: Path) -> list[tuple[str, Path, Path]]:
    """Finds the images of CamVid, in the version of the SegNet tutorial: street scenes with label maps of 11 classes.

    Images are in `train`, `val` and `test`, their label maps in `trainannot`, `valannot` and `testannot`. Returns the
    split, the image and the label map of each.
    """
    found = []
    for split in CAMVID_SPLITS:
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


def write_camvid(source: Path, root: Path) -> Iterator[int]:
    """Writes CamVid, found in `source`; yields the number of images written so far, also by an interrupted run.

    The layout is that of mmseg: `images/{train,val,test}`, JPEG of quality 95, and `annotations/{train,val,test}`,
    label maps. `root` is created when the dataset is complete. After an interruption, a new run skips finished files.
    """
    originals = find_camvid(source)
    with _unfinished_folder(root, source) as unfinished:
        for split in CAMVID_SPLITS:
            for part in ('images', 'annotations'):
                (unfinished / part / split).mkdir(parents=True, exist_ok=True)
        for done, (split, image_path, labels_path) in enumerate(originals, start=1):
            written = unfinished / 'annotations' / split / labels_path.name
            if not written.exists():  # written last
                image = np.asarray(_read_image(image_path).convert('RGB'))
                labels = _read_labels(labels_path)
                if labels.shape != image.shape[:2]:
                    raise UserError(f'{labels_path} is {labels.shape[0]} x {labels.shape[1]} pixels (height x width), '
                                    f'but its image is {image.shape[0]} x {image.shape[1]}: download the data again.')
                write_image(unfinished / 'images' / split / f'{image_path.stem}.jpg', image)
                write_image(written, labels)
            yield done


def _read_labels(path: Path) -> NDArray[np.uint8]:
    """Reads a label map of CamVid, `(H, W)`, uint8: classes 0 to 10, and 255 for pixels without a class."""
    labels = np.asarray(_read_image(path, Kind.LABEL_MAP))
    if labels.ndim != 2 or labels.max() > VOID:
        what = f'has {labels.shape[-1]} channels' if labels.ndim != 2 else f'has the value {labels.max()}'
        raise UserError(f'{path} {what}, but must be a grey image of classes 0 to 10, and 11 for no class: use the '
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
    """Writes the nuclei, found in `source`; yields the number of images written so far, also by an interrupted run.

    RGB images are in `train` and `val` (see `split_of`), COCO annotations in `instances_train.json` and
    `instances_val.json`. `root` is created when the dataset is complete. After an interruption, a new run skips
    finished files.
    """
    folders = find_nuclei(source)
    with _unfinished_folder(root, source) as unfinished:
        for part in (*NUCLEI_SPLITS, 'annotations'):
            (unfinished / part).mkdir(exist_ok=True)
        for done, folder in enumerate(folders, start=1):
            annotations = unfinished / 'annotations' / f'{folder.name}.json'
            if not annotations.exists():  # written last
                [path] = folder.glob('images/*.png')
                image = np.asarray(_read_image(path).convert('RGB'))
                instances = [to_annotation(mask) for mask in _read_masks(folder, image.shape[:2])]
                write_image(unfinished / split_of(folder.name) / f'{folder.name}.png', image)
                write_text(annotations, json.dumps(dict(size=image.shape[:2], instances=instances)))
            yield done
        for split in NUCLEI_SPLITS:
            names = [folder.name for folder in folders if split_of(folder.name) == split]
            write_text(unfinished / f'instances_{split}.json', json.dumps(_join(unfinished / 'annotations', names)))
        for path in (unfinished / 'annotations').iterdir():
            path.unlink()
        (unfinished / 'annotations').rmdir()


def _read_masks(folder: Path, size: tuple[int, int]) -> list[NDArray[np.bool_]]:
    """Reads the masks of one image of `size` (height, width), `(H, W)` each; skips empty masks."""
    masks = []
    for path in sorted(folder.glob('masks/*.png')):
        # Some files are grey, others RGBA; nuclei are white in all of them.
        mask = np.asarray(_read_image(path, Kind.LABEL_MAP).convert('L')) > 127
        if mask.shape != size:
            raise UserError(f'{path} is {mask.shape[0]} x {mask.shape[1]} pixels (height x width), but its image is '
                            f'{size[0]} x {size[1]}: unpack the download again.')
        if mask.any():
            masks.append(mask)
    return masks


def _join(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Joins the annotations of images, one JSON file each, into one dict in COCO format."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image_id, name in enumerate(names, start=1):
        content = json.loads((folder / f'{name}.json').read_text(encoding='utf-8'))
        height, width = content['size']
        images.append(dict(id=image_id, file_name=f'{name}.png', height=height, width=width))
        annotations += [dict(instance, id=len(annotations) + i, image_id=image_id, category_id=1)
                        for i, instance in enumerate(content['instances'], start=1)]
    return dict(images=images, annotations=annotations, categories=[dict(id=1, name='nucleus')])


def _read_image(path: Path, kind: Kind = Kind.IMAGE) -> Image.Image:
    """Reads an image of a download, which must have 8 bits per channel, or a `Kind.LABEL_MAP`."""
    image = decode(str(path), kind)
    if isinstance(image, Finding):
        raise UserError(f'{path} {image.detail}: unpack the download again.')
    return image


@contextmanager
def _unfinished_folder(root: Path, source: Path) -> Iterator[Path]:
    """Yields `<root>.unfinished`, also that of an interrupted run; renames it if the block succeeds."""
    if root.exists():
        raise UserError(f'{root} exists already: remove it, or choose another folder.')
    unfinished = root.with_name(f'{root.name}.unfinished')
    claim = unfinished / 'source.txt'
    with held(unfinished):
        own = printable(source.resolve())
        former = claim.read_text(encoding='utf-8') if claim.exists() else own
        if former != own:
            raise UserError(f'{unfinished} has files of {former}, not of {own}: remove it, or choose another folder.')
        write_text(claim, own)
        yield unfinished
        remove_leftovers(unfinished, '**/*')
        claim.unlink()
    unfinished.rename(root)


Finder = Callable[[Path], Sequence[object]]
Writer = Callable[[Path, Path], Iterator[int]]
# For each data set, what finds the originals, and what writes them.
DATASETS: dict[str, tuple[Finder, Writer]] = dict(
    camvid=(find_camvid, write_camvid),
    nuclei=(find_nuclei, write_nuclei))


@exit_on_error
@resumable
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
