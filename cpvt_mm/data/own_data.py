"""Finds out what a folder of data has: its format, splits, classes, images and annotations."""
import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os.path import commonpath
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from cpvt_mm.errors import UserError, first_line
from cpvt_mm.files import IMAGE_SUFFIXES

from .coco import read_coco
from .voc_yolo import Sample, read_voc, read_yolo, to_coco

FORMATS = {'.json': 'COCO annotations', '.xml': 'Pascal VOC', '.txt': 'YOLO', '.png': 'label maps'}
IMAGE_FOLDERS = ('images', 'JPEGImages', 'image', 'img', 'imgs')
LABEL_FOLDERS = ('annotations', 'annotation', 'labels', 'label', 'masks', 'mask', 'segmentationclass')
SPLIT = re.compile(r'(train|val|test)(ing|id|idation|\d+)?')
NO_CLASS = 255


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
    """What a folder has.

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


def find_data(source: Path, semantic: bool | None = None, val: str = '0.2', seed: int = 0) -> Data:
    """Reads the annotations of a folder or file, and the sizes of all images.

    Args:
        source: A folder with one kind of annotations, a COCO file, or the data.yaml of YOLO.
        semantic: Whether label maps are wanted, if the folder has other annotations, too. Defaults to None.
        val: If there is no split for validation, the share of the images to take for it, or a folder or file like
            `source`. Defaults to a fifth.
        seed: Which images the share has. Defaults to 0.

    Raises:
        UserError: If there is no data, no annotation, several formats, or a file that cannot be read.
    """
    data = _read(source, semantic)
    if not re.fullmatch(r'[01]?\.?\d*', val):
        other = _read(Path(val), semantic)
        if other.form != data.form or (len(other.splits) > 1 and 'val' not in other.splits):
            raise UserError(f'{val} ({other.form}, {", ".join(other.splits)}) is not for the validation of {source} '
                            f'({data.form}): name a folder or file of the same format, with one split.')
        data.splits['val'] = other.splits.get('val') or other.splits['train']
        data.classes += [name for name in other.classes if name not in data.classes]
    elif 'val' not in data.splits:
        data.splits['train'], data.splits['val'] = _divide(data, float(val), seed)
        number = len(data.splits['val'].coco['images'])
        data.notes.append(f'There is no split for validation: it gets {number} images of training (seed {seed}).')
    return data


def _read(source: Path, semantic: bool | None) -> Data:
    if not source.exists():
        raise UserError(f'{source} does not exist: name a folder, a COCO file, or the data.yaml of YOLO.')
    if source.is_file() and source.suffix not in ('.json', '.yaml', '.yml'):
        raise UserError(f'{source} is a file of no known format: name a folder, a COCO file, or the data.yaml of YOLO.')
    source = source.resolve()
    root = source if source.is_dir() else source.parent
    if source.suffix == '.json' and root.name.lower() in LABEL_FOLDERS:
        root = root.parent
    files = sorted(path for path in root.rglob('*') if path.is_file())
    images = {path.with_suffix(''): path for path in sorted(files, key=lambda path: path.suffix.lower() != '.png')
              if path.suffix.lower() in IMAGE_SUFFIXES}
    if not images:
        raise UserError(f'{source} {"has no images" if files else "is empty"}: name the folder with images and '
                        'annotations.')
    found = {suffix: list(_annotated(files, images, suffix, root)) for suffix in FORMATS}
    if source.is_file():
        suffix = '.json' if source.suffix == '.json' else '.txt'
        found = {suffix: [(source, source)] if suffix == '.json' else found[suffix]}
    known = [suffix for suffix, pairs in found.items() if pairs and semantic in (None, suffix == '.png')]
    if not known:
        raise UserError(f'{source} has {len(images)} images, but no {"label maps" if semantic else "annotations"} of '
                        'them in a known format (COCO JSON, Pascal VOC XML, YOLO txt, or label maps as PNG): put them '
                        'beside the images, or in folders annotations/, labels/ or masks/ beside images/.')
    if len(known) > 1:
        raise UserError(f'{source} has {" and ".join(FORMATS[suffix] for suffix in known)}: name the file or folder '
                        'of one of them, or a --task that only one has.')
    suffix, pairs = known[0], found[known[0]]
    if suffix == '.json':
        return _of_coco([file for file, _ in pairs], root)
    return _of_label_maps(pairs, root, images) if suffix == '.png' else _of_boxes(pairs, root, images, suffix)


def _annotated(files: Sequence[Path], images: dict[Path, Path], suffix: str, root: Path) -> Iterator[tuple[Path, Path]]:
    """Yields annotation files of a format, each with its image; COCO files with themselves."""
    for path in files:
        if path.suffix.lower() == suffix:
            if suffix == '.json':
                text = path.read_text(errors='replace')
                image = path if '"images"' in text and '"categories"' in text else None
            else:
                stems = [path.stem, re.sub(r'[-_](mask|masks|labels?|gt|L)$', '', path.stem)]
                image = next((images[folder / stem] for folder in _folders(path.parent, root) for stem in stems
                              if images.get(folder / stem, path) != path), None)
            if image:
                yield path, image


def _folders(folder: Path, root: Path) -> Iterator[Path]:
    """Yields the folders that may have the images for a folder of annotations."""
    yield folder
    parts = folder.relative_to(root).parts
    for index in reversed(range(len(parts))):
        if parts[index].lower() in LABEL_FOLDERS:
            for name in IMAGE_FOLDERS:
                yield root.joinpath(*parts[:index], name, *parts[index + 1:])


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
                turned = image.getexif().get(0x0112, 1) >= 5  # mmcv's loader turns these
                width, height = image.size[::-1] if turned else image.size
                return width, height, 3 if image.mode == 'P' else len(image.getbands())
        except (UnidentifiedImageError, OSError) as error:
            raise UserError(f'image {path} cannot be read ({first_line(error)}): put the whole file there, or remove '
                            'it and its annotations.') from error

    with ThreadPoolExecutor() as threads:
        return list(threads.map(read, paths))


def _of_coco(files: list[Path], root: Path) -> Data:
    data = Data(FORMATS['.json'], root, {})
    names: dict[str, Path] = {}
    folders = [root, *(path for depth in ('*', '*/*', '*/*/*') for path in sorted(root.glob(depth)) if path.is_dir())]
    for file in files:
        found = SPLIT.search(file.stem.lower())
        split = found[1] if found else split_of(file, root)
        if split in data.splits:
            raise UserError(f'{names[split]} and {file} are both for {split}: name one of them, and the other with '
                            '--val if it is for validation.')
        coco, names[split] = read_coco(str(file)), file
        if not coco['annotations'] and split != 'train':
            continue
        images = [image['file_name'] for image in coco['images']]
        # Several folders may have images of the same names.
        own = [file.parent, *(folder for folder in folders if split_of(folder / '_', root) == split), *folders]
        best = max(own, key=lambda folder: sum((folder / image).is_file() for image in images))
        data.channels |= {channels for *_, channels in read_sizes([best / image for image in images])}
        data.splits[split] = Split(coco, best, file)
        data.classes += [category['name'] for category in coco['categories'] if category['name'] not in data.classes]
    return _checked(data)


def _of_boxes(pairs: list[tuple[Path, Path]], root: Path, images: dict[Path, Path], suffix: str) -> Data:
    """Reads VOC or YOLO, whose images without an annotation file have no objects in YOLO, and are left out in VOC."""
    data = Data(FORMATS[suffix], root, {})
    by_image = {image: annotation for annotation, image in pairs}
    folders = {image.parent for image in by_image}
    paths = [path for path in sorted(images.values()) if path.parent in folders]
    if suffix == '.xml' and (left := [path for path in paths if path not in by_image]):
        data.notes.append(f'{len(left)} images have no XML file and are left out, such as {left[0]}.')
        paths = sorted(by_image)
    sizes = read_sizes(paths)
    data.channels = {channels for *_, channels in sizes}
    samples = [Sample(path, by_image.get(path), size[:2]) for path, size in zip(paths, sizes, strict=True)]
    data.classes, splits = read_voc(samples, root) if suffix == '.xml' else read_yolo(samples, root)
    for sample in samples:
        sample.split = splits.get(sample.image, split_of(sample.image, root))
    for split in ('train', 'val', 'test'):
        of_split = [sample for sample in samples if sample.split == split]
        if of_split:
            data.splits[split] = Split(to_coco(of_split, data.classes, root), root)
    return _checked(data)


def _checked(data: Data) -> Data:
    """Drops classes without an object, notes those that a split lacks, and requires a split to train on."""
    used = {name: {categories[annotation['category_id']] for annotation in split.coco['annotations']
                   if annotation['category_id'] in categories} for name, split in data.splits.items()
            for categories in [{category['id']: category['name'] for category in split.coco['categories']}]}
    if not used.get('train'):
        raise UserError(f'{data.root} has no annotation to train on: name the folder with annotations for training.')
    data.classes = [name for name in data.classes if any(name in names for names in used.values())]
    for split, names in used.items():
        if missing := [name for name in data.classes if name not in names]:
            data.notes.append(f'{split} has no object of class {", ".join(missing)}.')
    return data


def _of_label_maps(pairs: list[tuple[Path, Path]], root: Path, images: dict[Path, Path]) -> Data:
    by_image = {image: label_map for label_map, image in pairs}
    folders = {image.parent for image in by_image}
    labels = set(by_image.values())
    if alone := [path for path in sorted(images.values())
                 if path.parent in folders and path not in by_image and path not in labels]:
        raise UserError(f'{len(alone)} images have no label map, such as {alone[0]}: add the label maps, or move the '
                        'images away.')
    ends = {(image.suffix, label.name.removeprefix(image.stem)) for image, label in by_image.items()}
    if len(ends) > 1:
        raise UserError(f'{root} has images and label maps whose names end in {sorted(ends)}: give all the same ends, '
                        'because mmseg reads one kind.')
    data = Data('label maps', root, {}, suffixes=ends.pop())
    with ThreadPoolExecutor() as threads:
        values = np.unique(np.concatenate(list(threads.map(_values, sorted(labels)))))
    data.palette, classes = _names_of_labels(values[values != NO_CLASS], root, sorted(labels)[0])
    data.classes = classes
    for split in ('train', 'val', 'test'):
        found = sorted(image for image in by_image if split_of(image, root) == split)
        if found:
            folder = Path(commonpath([image.parent for image in found]))
            sizes = read_sizes(found)
            data.channels |= {channels for *_, channels in sizes}
            coco = [dict(id=index, file_name=str(image.relative_to(folder)), width=width, height=height)
                    for index, (image, (width, height, _)) in enumerate(zip(found, sizes, strict=True))]
            data.splits[split] = Split(dict(images=coco, annotations=[], categories=[]), folder,
                                       Path(commonpath([by_image[image].parent for image in found])))
    if 'train' not in data.splits:
        raise UserError(f'{root} has no images to train on: name the folder with annotations for training.')
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


def _divide(data: Data, share: float, seed: int) -> tuple[Split, Split]:
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
        parts.append(Split(coco, split.images, split.labels if data.form == 'label maps' else None, is_whole=False))
    return parts[0], parts[1]
