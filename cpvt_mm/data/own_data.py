"""Finds out what a folder of data has: its format, splits, classes, images and annotations."""
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cpvt_mm.errors import UserError
from cpvt_mm.files import IMAGE_SUFFIXES

from .coco import read_coco
from .other_formats import LABEL_MAPS, Sample, read_label_maps, read_voc, read_yolo, to_coco
from .splits import SPLIT, SPLITS, Data, Split, divide, read_sizes, split_of

FORMATS = {'.json': 'COCO annotations', '.xml': 'Pascal VOC', '.txt': 'YOLO', '.png': LABEL_MAPS}
IMAGE_FOLDERS = ('images', 'JPEGImages', 'image', 'img', 'imgs')
LABEL_FOLDERS = ('annotations', 'annotation', 'labels', 'label', 'masks', 'mask', 'segmentationclass')


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
    if 'train' not in data.splits or not (data.form == LABEL_MAPS or data.splits['train'].coco['annotations']):
        raise UserError(f'{source} has no annotation to train on: name the folder or file with those for training.')
    if not re.fullmatch(r'\d*\.?\d+', val):
        other = _read(Path(val), semantic)
        if (other.form, other.suffixes) != (data.form, data.suffixes):
            raise UserError(f'{val} has {other.form} (*{other.suffixes[0]}, *{other.suffixes[1]}), but {source} has '
                            f'{data.form} (*{data.suffixes[0]}, *{data.suffixes[1]}): name data of the same kind.')
        data.splits['val'] = other.splits.get('val') or next(iter(other.splits.values()))
        data.classes += [name for name in other.classes if name not in data.classes]
    elif 'val' not in data.splits:
        data.splits['train'], data.splits['val'] = divide(data, float(val), seed)
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
    return read_label_maps(pairs, root, images.values()) if suffix == '.png' else _of_boxes(pairs, root, images, suffix)


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
    if out := [sample.image for sample in samples if sample.split not in SPLITS]:
        data.notes.append(f'{len(out)} images are in no list of ImageSets/Main and are left out, such as {out[0]}.')
    for split in SPLITS:
        of_split = [sample for sample in samples if sample.split == split]
        if of_split:
            data.splits[split] = Split(to_coco(of_split, data.classes, root), root)
    return _checked(data)


def _checked(data: Data) -> Data:
    """Drops classes without an object, and notes those that a split lacks."""
    used = {name: {categories[annotation['category_id']] for annotation in split.coco['annotations']
                   if annotation['category_id'] in categories} for name, split in data.splits.items()
            for categories in [{category['id']: category['name'] for category in split.coco['categories']}]}
    data.classes = [name for name in data.classes if any(name in names for names in used.values())]
    for split, names in used.items():
        if missing := [name for name in data.classes if name not in names]:
            data.notes.append(f'{split} has no object of class {", ".join(missing)}.')
    return data
