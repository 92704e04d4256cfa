"""Finds out what a folder of data has: its format, splits, classes, images and annotations."""
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import commonpath
from pathlib import Path

from openmmlab_runs.errors import UserError

from .folder import IMAGE_WORDS, LABEL_WORDS, Folder, folders_of, peek, words_of
from .objects import Sample, read_sizes, to_coco
from .readers.coco_files import COCO, is_coco, read_coco_files
from .readers.cvat import read_cvat
from .readers.foreign import name_foreign
from .readers.label_maps import LABEL_MAPS, Meaning, find_label_maps, is_plain, objects_of, understand
from .readers.label_studio import is_label_studio, read_label_studio
from .readers.labelme import is_labelme, read_labelme
from .readers.voc import IS_CVAT, IS_VOC, read_lists, read_voc
from .readers.yolo import describe_yolo, read_yolo, split_by_places
from .splits import SPLITS, Data, Split, divide, split_of

VOC, YOLO, LABELME, CVAT, LABEL_STUDIO = 'Pascal VOC', 'YOLO', 'LabelMe JSON', 'CVAT XML', 'Label Studio JSON'
KNOWN = f'{COCO}, {VOC}, {YOLO}, {LABELME}, {CVAT}, {LABEL_STUDIO} or {LABEL_MAPS}'
NAMED = ('.json', '.xml', '.yaml', '.yml', '.data')  # suffixes of files that can be named
RARE = 0.01  # of all pixels
EMPTY = ': they teach what is no object (--drop-empty leaves them out)'


@dataclass(frozen=True)
class Options:
    """Wishes of a user about a folder of data.

    Attributes:
        semantic: Whether label maps are wanted, if the folder has other annotations, too; None: what there is.
        masks: One of `label_maps.KINDS`; None: guessed.
        colours: A file with classes and colours; None: one in the folder.
    """
    semantic: bool | None = None
    masks: str | None = None
    colours: Path | None = None


def find_data(source: Path, options: Options = Options(), val: str = '0.2', seed: int = 0) -> Data:
    """Reads the annotations of a folder or file, and the sizes of all images.

    Args:
        source: A folder with one kind of annotations, or one of its files: COCO, CVAT, Label Studio, or data.yaml.
        options: See `Options`.
        val: If there is no split for validation, the share of the images to take for it, or a folder or file like
            `source`. Defaults to a fifth.
        seed: Which images the share has. Defaults to 0.

    Raises:
        UserError: If there is no data, no annotation, several formats, or a file that cannot be read.
    """
    data = _read(source, options)
    if 'train' not in data.splits or not (data.is_semantic or data.splits['train'].coco['annotations']):
        raise UserError(f'{source} has no annotation to train on: name the folder or file with those for training.')
    if not re.fullmatch(r'\d*\.?\d+', val):
        other = _read(Path(val), options)
        if (other.form, other.suffixes) != (data.form, data.suffixes):
            raise UserError(f'{val} has {other.form}, but {source} has {data.form}, or names of files that end '
                            'otherwise: name data of the same kind.')
        data.splits['val'] = other.splits.get('val') or next(iter(other.splits.values()))
        short, long = sorted((data.classes, other.classes), key=len)
        if data.is_semantic and long[:len(short)] != short:
            raise UserError(f'{val} has the classes {", ".join(other.classes[:9])}, but {source} has '
                            f'{", ".join(data.classes[:9])}: give both the same list of classes.')
        data.classes += [name for name in other.classes if name not in data.classes]
        data.notes += [note for note in other.notes if note not in data.notes]
    elif 'val' not in data.splits:
        data.splits['train'], data.splits['val'] = divide(data, float(val), seed)
        number = len(data.splits['val'].coco['images'])
        data.notes.append(f'There is no split for validation: it gets {number} images of training (seed {seed}).')
    _tell_splits(data)
    return data


def _read(source: Path, options: Options) -> Data:
    if not source.exists():
        raise UserError(f'{source} does not exist: name a folder, a COCO file, or the data.yaml of YOLO.')
    if not source.is_dir() and source.suffix.lower() not in NAMED:
        raise UserError(f'{source} is a file of no known format: name a folder, a COCO file, or the data.yaml of YOLO.')
    root = source if source.is_dir() else source.parent
    if source.is_file() and set(words_of(root.resolve().name)) & LABEL_WORDS:
        root = root.parent
    folder = Folder(root)
    if not folder.images and not (source.is_file() and source.suffix.lower() not in ('.json', '.xml')):
        raise UserError(f'{source} {"has no images" if folder.files else "is empty"}: name the folder with images and '
                        'annotations.')
    # The description of YOLO may name folders elsewhere.
    found = {form: files for form, files in _find_formats(folder, source).items() if files or source.is_file()}
    wanted = {form: files for form, files in found.items() if options.semantic in (None, form == LABEL_MAPS)}
    # Label maps may hold numbers of objects.
    wanted = wanted or ({} if options.semantic else found)
    if not wanted:
        if foreign := name_foreign(folder):
            raise UserError(f'{foreign}.')
        what = 'label maps' if options.semantic else 'annotations'
        raise UserError(f'{source} has {len(folder.images)} images, but no {what} of them in a known format ({KNOWN}): '
                        'put them beside the images, or in folders annotations/, labels/ or masks/ beside images/.')
    if len(wanted) > 1:
        raise UserError(f'{source} has {" and ".join(wanted)}: name the file or folder of one of them, or a --task '
                        'that only one has.')
    (form, files), = wanted.items()
    if form == COCO:
        data = read_coco_files(files, folder, named=source.is_file())
    elif form == LABEL_MAPS:
        data = _of_label_maps(files, folder, options)
    elif form == YOLO:
        data = _of_yolo(files, folder, source)
    else:
        data = (_of_one_file if form in (CVAT, LABEL_STUDIO) else _of_files)(form, files, folder)
    data.notes += folder.left_out
    return data


def _find_formats(folder: Folder, source: Path) -> dict[str, list[Path]]:
    """Returns the annotation files of each format, or the one that is named."""
    if source.is_file():
        path = Path(os.path.abspath(source))
        form = YOLO if path.suffix.lower() not in ('.json', '.xml') else next(
            (form for form, is_it in SINGLE.items() if is_it(peek(path))), COCO)
        return {form: _labels_of_yolo(folder) if form == YOLO else [path]}
    found: dict[str, list[Path]] = {form: [] for form in (COCO, VOC, YOLO, LABELME, CVAT, LABEL_STUDIO, LABEL_MAPS)}
    for path in folder.of('.json', '.xml'):
        ends = peek(path)
        for form, is_it in (*SINGLE.items(), *EACH.items()):
            if (path.suffix.lower() == '.xml') == (form in (VOC, CVAT)) and is_it(ends):
                found[form].append(path)
                break
    found[YOLO] = _labels_of_yolo(folder)
    maps = set(find_label_maps(folder))
    panoptic = {path.stem for path in found[COCO]}  # the folders of their PNG files
    found[LABEL_MAPS] = [path for path in sorted(maps) if panoptic.isdisjoint(path.parts)
                         and (pair := folder.image_of(path)) and pair[1] not in maps]
    return found


SINGLE: dict[str, Callable[[bytes], bool]] = {
    LABEL_STUDIO: is_label_studio, COCO: is_coco,
    CVAT: lambda ends: bool(IS_CVAT.search(ends)) and b'<image' in ends}
EACH: dict[str, Callable[[bytes], bool]] = {LABELME: is_labelme, VOC: lambda ends: bool(IS_VOC.search(ends))}


def _labels_of_yolo(folder: Folder) -> list[Path]:
    """Returns txt files that belong to an image, and are empty or begin with a number."""
    found = []
    for path in folder.of('.txt'):
        if folder.image_of(path):
            with path.open('rb') as file:
                head = file.read(256).removeprefix(b'\xef\xbb\xbf').strip()
            if not head or re.match(rb'[-+.\d]', head):
                found.append(path)
    return found


def _of_files(form: str, files: Sequence[Path], folder: Folder) -> Data:
    """Reads VOC or LabelMe: images without a file of their own are left out."""
    data, pairs = Data(form, folder.root, {}), folder.pair(files)
    near = {image.parent for image in pairs.of_image}
    _tell_left(data, pairs.alone, [path for path in folder.images if path.parent in near
                                   and path not in pairs.of_image], 'XML file' if form == VOC else 'JSON file')
    samples = [Sample(image, path) for image, path in pairs.of_image.items()]
    _measure(samples, data)
    data.notes += read_voc(samples) if form == VOC else read_labelme(samples)
    return _of_samples(data, samples, folder, read_lists(folder, 'Main', list(pairs.of_image)))


def _of_one_file(form: str, files: Sequence[Path], folder: Folder) -> Data:
    """Reads files of CVAT or Label Studio, each with several images."""
    data, samples, splits = Data(form, folder.root, {}), dict[Path, Sample](), dict[str, list[Path]]()
    for path in files:
        if form == CVAT:
            found, of_subset, notes = read_cvat(path, folder)
            for split, images in of_subset.items():
                splits.setdefault(split, []).extend(images)
        else:
            found, notes = read_label_studio(path, folder)
        samples |= found
        data.notes += notes
    if not samples:
        raise UserError(f'none of the images of {files[0]} is there: put them below {folder.root}.')
    _measure(list(samples.values()), data)
    return _of_samples(data, list(samples.values()), folder, splits)


def _of_yolo(files: Sequence[Path], folder: Folder, source: Path) -> Data:
    """Reads YOLO, whose images without a txt file have no objects."""
    data = Data(YOLO, folder.root, {})
    about = describe_yolo(folder, source if source.is_file() else None)
    outside = [place for places in (about.places or {}).values() for place in places
               if not place.is_relative_to(folder.root)]
    if outside:
        folder = Folder(folder.root, [_above(place) for place in outside])
        files = _labels_of_yolo(folder)
    pairs = folder.pair(files)
    data.notes += about.notes
    if about.places is None:
        near = {image.parent for image in pairs.of_image}
        images = [path for path in folder.images if path.parent in near]
        splits = {}
    else:
        splits = split_by_places(folder.images, about.places)
        images = sorted({image for paths in splits.values() for image in paths})
        used = set(images)
        if left := [path for path in folder.images if path not in used]:
            data.notes.append(f'{len(left)} images are in no split that {about.source or "the lists"} names and are '
                              f'left out, such as {folder.name(left[0])}.')
        for split, places in about.places.items():
            if not splits.get(split):
                raise UserError(f'{about.source or folder.root} names {places[0] if places else "nothing"} for '
                                f'{split}, which has no images: put them there, or correct it.')
    _tell_left(data, pairs.alone, [], 'txt file')
    if empty := [path for path in images if path not in pairs.of_image]:
        data.notes.append(f'{len(empty)} images have no txt file, so they have no objects, such as '
                          f'{folder.name(empty[0])}.')
    samples = [Sample(image, pairs.of_image.get(image)) for image in images]
    _measure(samples, data)
    data.classes, notes = read_yolo(samples, about)
    data.notes += notes
    return _of_samples(data, samples, folder, splits)


def _above(place: Path) -> Path:
    """Returns the folder that has both images and labels, for a folder of images of YOLO."""
    parts = (place if place.is_dir() else place.parent).parts
    depth = next((depth for depth in range(len(parts) - 1, 0, -1) if set(words_of(parts[depth])) & IMAGE_WORDS), None)
    return Path(*parts[:depth]) if depth else Path(*parts)


def _of_label_maps(files: Sequence[Path], folder: Folder, options: Options) -> Data:
    """Reads label maps of classes, or of numbers of objects."""
    data, pairs, maps = Data(LABEL_MAPS, folder.root, {}), folder.pair(files), set(files)
    near = {image.parent for image in pairs.of_image}
    _tell_left(data, pairs.alone, [path for path in folder.images if path.parent in near
                                   and path not in pairs.of_image and path not in maps], 'label map')
    meaning = understand(list(pairs.of_image.values()), folder, options.masks, options.colours,
                         None if options.semantic is None else not options.semantic)
    data.notes += meaning.notes
    samples = [Sample(image, path) for image, path in pairs.of_image.items()]
    _measure(samples, data)
    lists = read_lists(folder, 'Segmentation', list(pairs.of_image))
    if meaning.are_objects:
        for sample, path in zip(samples, pairs.of_image.values(), strict=True):
            sample.objects = objects_of(path, meaning.classes[0])
        return _of_samples(data, samples, folder, lists)
    data.is_semantic, data.classes, data.palette = True, meaning.classes, meaning.palette
    pixels = dict(zip(pairs.of_image, meaning.pixels, strict=True))
    divided = _divide(samples, folder, lists, data)
    ends = {_ends_of(sample) for own in divided.values() for sample in own}
    as_they_lie = len(ends) == 1 and not meaning.codes and all(map(is_plain, pairs.of_image.values()))
    data.suffixes = ends.pop() if as_they_lie else ('', '.png')
    for split, own in divided.items():
        data.splits[split] = _split_of_maps(own, data.suffixes, pixels, folder)
    if any(part.labels is None for part in data.splits.values()):
        data.suffixes = '', '.png'
        for split, own in divided.items():
            data.splits[split] = _split_of_maps(own, data.suffixes, pixels, folder, meaning)
    _tell_rare(meaning, data)
    return data


def _ends_of(sample: Sample) -> tuple[str, str]:
    """Returns the ends of the names of an image and of its label map, after what both have."""
    assert sample.annotation is not None
    return sample.image.suffix, sample.annotation.name.removeprefix(sample.image.stem)


def _split_of_maps(samples: Sequence[Sample], ends: tuple[str, str], pixels: dict[Path, dict[int, int]], folder: Folder,
                   meaning: Meaning | None = None) -> Split:
    """Makes a split of label maps: those that lie where mmseg looks for them, or those that are to be converted."""
    images = [sample.image for sample in samples]
    where = folder.root if meaning else Path(commonpath([image.parent for image in images]))
    coco = to_coco(samples, [], folder)
    for entry, sample in zip(coco['images'], samples, strict=True):
        entry.update(file_name=sample.image.relative_to(where).as_posix(), label_map=sample.annotation,
                     pixels=pixels[sample.image])
    folders = folders_of(images, folder.root)
    if meaning:
        return Split(coco, where, None, False, folders, meaning)
    labels = Path(commonpath([sample.annotation.parent for sample in samples if sample.annotation]))
    mirrored = all(sample.annotation == labels / (str(sample.image.relative_to(where))[:-len(ends[0])] + ends[1])
                   for sample in samples)
    listed = {Path(place, name) for place, _, names in os.walk(where) for name in names if name.endswith(ends[0])}
    return Split(coco, where, labels if mirrored else None, listed == set(images), folders)


def _tell_rare(meaning: Meaning, data: Data) -> None:
    total = sum(sum(one.values()) for one in meaning.pixels)
    shares = {name: sum(one.get(index, 0) for one in meaning.pixels) / max(total, 1)
              for index, name in enumerate(meaning.classes)}
    rare = {name: share for name, share in shares.items() if 0 < share < RARE}
    if rare:
        least = min(rare, key=lambda name: rare[name])
        data.notes.append(f'{len(rare)} classes have less than {RARE:.0%} of the pixels, the least {least} '
                          f'({rare[least]:.2%}): class_weight in model.decode_head.loss_decode gives them more weight.')


def _measure(samples: Sequence[Sample], data: Data) -> None:
    """Reads the sizes of images into samples, and notes what of them is lost."""
    for sample, (width, height, channels, is_deep) in zip(
            samples, read_sizes([sample.image for sample in samples]), strict=True):
        sample.size = width, height
        data.channels.add(channels)
        data.deep += is_deep


def _divide(samples: Sequence[Sample], folder: Folder, lists: dict[str, list[Path]], data: Data
            ) -> dict[str, list[Sample]]:
    """Returns the samples of each split, after lists of their images, or after their folders."""
    if not lists:
        for sample in samples:
            lists.setdefault(split_of(sample.image, folder.root), []).append(sample.image)
    by_image = {sample.image: sample for sample in samples}
    listed = {image for images in lists.values() for image in images}
    if out := [sample.image for sample in samples if sample.image not in listed]:
        data.notes.append(f'{len(out)} images are in no list of a split and are left out, such as '
                          f'{folder.name(out[0])}.')
    divided = {split: [by_image[image] for image in dict.fromkeys(lists.get(split, ())) if image in by_image]
               for split in SPLITS}
    return {split: own for split, own in divided.items() if own}


def _of_samples(data: Data, samples: Sequence[Sample], folder: Folder, lists: dict[str, list[Path]]) -> Data:
    """Makes splits of samples with objects, which are written to files of our own."""
    nameless = next((sample.annotation for sample in samples for name, _ in sample.objects if not name), None)
    if nameless:
        raise UserError(f'{nameless} has an object without the name of a class: give it one.')
    if wrong := [sample for sample in samples if all(sample.stated) and sample.stated != sample.size]:
        data.notes.append(f'{len(wrong)} images have another size than their annotation states, such as '
                          f'{folder.name(wrong[0].image)} ({_by(wrong[0].size)} pixels, not {_by(wrong[0].stated)}): '
                          'their objects may lie elsewhere.')
    used = dict.fromkeys(sorted({name for sample in samples for name, _ in sample.objects}))
    if unused := [name for name in data.classes if name not in used]:
        data.notes.append(f'{len(unused)} classes have no object and are left out: {", ".join(unused[:5])}'
                          f'{", ..." if unused[5:] else ""}.')
    data.classes = list(dict.fromkeys(name for name in data.classes if name in used) if data.classes else used)
    for split, own in _divide(samples, folder, lists, data).items():
        data.splits[split] = Split(to_coco(own, data.classes, folder), folder.root, folders=folders_of(
            [sample.image for sample in own], folder.root))
    return data


def _by(size: tuple[int, int]) -> str:
    return f'{size[0]} x {size[1]}'


def _tell_left(data: Data, labels: Sequence[Path], images: Sequence[Path], what: str) -> None:
    if labels:
        data.notes.append(f'{len(labels)} {what}s have no image of their own and are left out, such as {labels[0]}.')
    if images:
        data.notes.append(f'{len(images)} images have no {what} and are left out, such as {images[0]}.')


def _tell_splits(data: Data) -> None:
    """Notes classes that a split lacks, and images that are in two splits."""
    for name, split in data.splits.items():
        if data.is_semantic:
            present = {data.classes[label] for image in split.coco['images'] for label in image['pixels']}
        else:
            names = {category['id']: category['name'] for category in split.coco['categories']}
            present = {names[one['category_id']] for one in split.coco['annotations']}
        if missing := [name for name in data.classes if name not in present]:
            data.notes.append(f'{name} has no {"pixel" if data.is_semantic else "object"} of class '
                              f'{", ".join(missing)}.')
        if not data.is_semantic:
            full = {one['image_id'] for one in split.coco['annotations']}
            if empty := [image for image in split.coco['images'] if image['id'] not in full]:
                data.notes.append(f'{len(empty)} images of {name} have no objects{EMPTY * (name == "train")}.')
    trained = {data.splits['train'].images / image['file_name'] for image in data.splits['train'].coco['images']}
    for name in ('val', 'test'):
        if name in data.splits and (both := trained & {
                data.splits[name].images / image['file_name'] for image in data.splits[name].coco['images']}):
            data.notes.append(f'{len(both)} images are in train and {name}, such as {min(both)}: metrics will be too '
                              'good.')
