"""Finds out what a folder of data has: its format, splits, classes, images and annotations."""
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import commonpath
from pathlib import Path

from openmmlab_runs.errors import UserError

from .findings import some, told
from .folder import IMAGE_WORDS, LABEL_WORDS, Folder, folders_of, peek, words_of
from .objects import Picture, read_headers, to_coco
from .readers.coco_files import COCO, read_coco_files
from .readers.cvat import read_cvat
from .readers.foreign import name_foreign
from .readers.label_maps import LABEL_MAPS, Meaning, find_label_maps, is_plain, objects_of, understand
from .readers.label_studio import read_label_studio
from .readers.labelme import read_labelme
from .readers.voc import read_lists, read_voc
from .readers.yolo import describe_yolo, read_yolo
from .splits import SPLITS, Data, Split, divide, split_of

VOC, YOLO, LABELME, CVAT, LABEL_STUDIO = 'Pascal VOC', 'YOLO', 'LabelMe JSON', 'CVAT XML', 'Label Studio JSON'
KNOWN = f'{COCO}, {VOC}, {YOLO}, {LABELME}, {CVAT}, {LABEL_STUDIO} or {LABEL_MAPS}'
# Formats of JSON and XML files, by both ends of a file: those of one file for all images, and of one for each.
SINGLE: dict[str, Callable[[bytes], bool]] = {
    LABEL_STUDIO: lambda ends: ends.lstrip().startswith(b'[') and (b'"original_width"' in ends or all(
        key in ends for key in (b'"data"', b'"annotations"', b'"file_upload"'))),
    COCO: lambda ends: b'"images"' in ends and b'"categories"' in ends,
    CVAT: lambda ends: b'<image' in ends and bool(re.search(rb'<annotations[\s>]', ends))}
EACH: dict[str, Callable[[bytes], bool]] = {
    LABELME: lambda ends: b'"shapes"' in ends and b'"imagePath"' in ends,
    VOC: lambda ends: bool(re.search(rb'<annotation[\s>]', ends))}
NAMED = ('.json', '.xml', '.yaml', '.yml', '.data')  # suffixes of files that can be named
RARE = 0.01  # of all pixels
EMPTY = ': they teach what is no object (--drop-empty leaves them out)'


@dataclass(frozen=True)
class Options:
    semantic: bool | None = None  # whether label maps are wanted, if there are other annotations, too; None: what is
    masks: str | None = None  # one of `label_maps.KINDS`; None: guessed
    colours: Path | None = None  # a file with classes and colours; None: one in the folder


def find_data(source: Path, options: Options = Options(), val: str = '0.2', seed: int = 0) -> Data:
    """Reads the annotations of a folder or file, and the sizes of all images.

    Args:
        source: A folder with one kind of annotations, or one of its files: COCO, CVAT, Label Studio, or data.yaml.
        options: See `Options`.
        val: Without a split for validation: the share of the images to take, or a folder or file. Defaults to a fifth.
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
        data.pixels += other.pixels
        data.splits['val'] = other.splits.get('val') or next(iter(other.splits.values()))
        short, long = sorted((data.classes, other.classes), key=len)
        if data.is_semantic and long[:len(short)] != short:
            raise UserError(f'{val} has the classes {some(other.classes)}, but {source} has {some(data.classes)}: give '
                            'both the same list of classes.')
        data.classes += [name for name in other.classes if name not in data.classes]
        data.notes += [note for note in other.notes if note not in data.notes]
    elif 'val' not in data.splits:
        data.splits['train'], data.splits['val'] = divide(data, float(val), seed)
        number = len(data.splits['val'].coco['images'])
        data.notes.append(f'There is no split for validation: it gets {number} images of training (seed {seed}).')
    _tell_splits(data)
    return data


def _read(source: Path, options: Options) -> Data:
    is_file, suffix = source.is_file(), source.suffix.lower()
    if not source.exists() or (not source.is_dir() and suffix not in NAMED):
        raise UserError(f'{source} {"is a file of no known format" if source.exists() else "does not exist"}: name a '
                        'folder, a COCO file, or the data.yaml of YOLO.')
    root = source.parent if is_file else source
    if is_file and set(words_of(root.resolve().name)) & LABEL_WORDS:
        root = root.parent
    folder = Folder(root)
    if not folder.images and not (is_file and suffix not in ('.json', '.xml')):
        raise UserError(f'{source} {"has no images" if folder.files else "is empty"}: name the folder with images and '
                        'annotations.')
    # The description of YOLO may name folders elsewhere.
    found = {form: files for form, files in _find_formats(folder, source).items() if files or is_file}
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
        data = read_coco_files(files, folder, named=is_file)
    elif form == LABEL_MAPS:
        data = _of_label_maps(files, folder, options)
    elif form == YOLO:
        data = _of_yolo(files, folder, source if is_file else None)
    else:
        data = (_of_one_file if form in (CVAT, LABEL_STUDIO) else _of_files)(form, files, folder)
    data.notes += folder.left_out
    return data


def _find_formats(folder: Folder, source: Path) -> dict[str, list[Path]]:
    if source.is_file():
        path = Path(os.path.abspath(source))
        form = YOLO if path.suffix.lower() not in ('.json', '.xml') else next(
            (form for form, is_it in SINGLE.items() if is_it(peek(path))), COCO)
        return {form: _labels_of_yolo(folder) if form == YOLO else [path]}
    found: dict[str, list[Path]] = {form: [] for form in (COCO, VOC, YOLO, LABELME, CVAT, LABEL_STUDIO, LABEL_MAPS)}
    for path in folder.of('.json', '.xml'):
        ends, is_xml = peek(path), path.suffix.lower() == '.xml'
        forms = (form for form, is_it in (*SINGLE.items(), *EACH.items())
                 if is_xml == (form in (VOC, CVAT)) and is_it(ends))
        if form := next(forms, ''):
            found[form].append(path)
    found[YOLO] = _labels_of_yolo(folder)
    maps = set(find_label_maps(folder))
    panoptic = {path.stem for path in found[COCO]}  # the folders of their PNG files
    found[LABEL_MAPS] = [path for path in sorted(maps) if panoptic.isdisjoint(path.parts)
                         and (pair := folder.image_of(path)) and pair[1] not in maps]
    return found


def _labels_of_yolo(folder: Folder) -> list[Path]:
    def is_label(path: Path) -> bool:
        with path.open('rb') as file:
            return bool(re.match(rb'([-+.\d]|$)', file.read(256).removeprefix(b'\xef\xbb\xbf').strip()))

    return [path for path in folder.of('.txt') if folder.image_of(path) and is_label(path)]


def _pictures(files: Sequence[Path], folder: Folder, what: str, data: Data) -> list[Picture]:
    """Returns images with their annotation files, and notes what is left out: files and images without the other."""
    of_image, alone = folder.pair(files)
    near, labels = {image.parent for image in of_image}, set(files)
    bare = [path for path in folder.images if path.parent in near and path not in of_image and path not in labels]
    data.notes += [*told(alone, f'{what}s have no image of their own and are left out'),
                   *told(bare, f'images have no {what} and are left out')]
    return _measured([Picture(image, path) for image, path in of_image.items()], data)


def _of_files(form: str, files: Sequence[Path], folder: Folder) -> Data:
    data = Data(form, folder.root, {})
    samples = _pictures(files, folder, 'XML file' if form == VOC else 'JSON file', data)
    data.notes += read_voc(samples) if form == VOC else read_labelme(samples)
    return _of_samples(data, samples, folder, read_lists(folder, 'Main', [sample.image for sample in samples]))


def _of_one_file(form: str, files: Sequence[Path], folder: Folder) -> Data:
    data, samples, splits = Data(form, folder.root, {}), dict[Path, Picture](), dict[str, list[Path]]()
    for path in files:
        found, of_subset, notes = read_cvat(path, folder) if form == CVAT else read_label_studio(path, folder)
        for split, images in of_subset.items():
            splits.setdefault(split, []).extend(images)
        samples |= found
        data.notes += notes
    if not samples:
        raise UserError(f'none of the images of {files[0]} is there: put them below {folder.root}.')
    return _of_samples(data, _measured([*samples.values()], data), folder, splits)


def _of_yolo(files: Sequence[Path], folder: Folder, named: Path | None) -> Data:
    data, splits = Data(YOLO, folder.root, {}), dict[str, list[Path]]()
    about = describe_yolo(folder, named)
    outside = [place for places in (about.places or {}).values() for place in places
               if not place.is_relative_to(folder.root)]
    if outside:
        folder = Folder(folder.root, [_above(place) for place in outside])
        files = _labels_of_yolo(folder)
    of_image, alone = folder.pair(files)
    near = {image.parent for image in of_image}
    images = [path for path in folder.images if path.parent in near]
    data.notes += about.notes
    if about.places is not None:
        named_here = {split: set(about.places[split]) for split in SPLITS if split in about.places}
        splits = {split: [image for image in folder.images if image in own or not own.isdisjoint(image.parents)]
                  for split, own in named_here.items()}
        images = sorted({image for paths in splits.values() for image in paths})
        left = [folder.name(path) for path in sorted({*folder.images}.difference(images))]
        data.notes += told(left, f'images are in no split that {about.source or "the lists"} names and are left out')
        for split, places in about.places.items():
            if not splits.get(split):
                raise UserError(f'{about.source or folder.root} names {places[0] if places else "nothing"} for '
                                f'{split}, which has no images: put them there, or correct it.')
    data.notes += [*told(alone, 'txt files have no image of their own and are left out'),
                   *told([folder.name(path) for path in images if path not in of_image],
                         'images have no txt file, so they have no objects')]
    samples = _measured([Picture(image, of_image.get(image)) for image in images], data)
    data.classes, notes = read_yolo(samples, about)
    data.notes += notes
    return _of_samples(data, samples, folder, splits)


def _above(place: Path) -> Path:
    """Returns the folder that has both images and labels, for a folder of images of YOLO."""
    parts = (place if place.is_dir() else place.parent).parts
    depth = next((depth for depth in range(len(parts) - 1, 0, -1) if set(words_of(parts[depth])) & IMAGE_WORDS), None)
    return Path(*parts[:depth])


def _of_label_maps(files: Sequence[Path], folder: Folder, options: Options) -> Data:
    data = Data(LABEL_MAPS, folder.root, {})
    samples = _pictures(files, folder, 'label map', data)
    paths = [sample.annotation for sample in samples if sample.annotation]
    meaning = understand(paths, folder, options.masks, options.colours,
                         None if options.semantic is None else not options.semantic)
    data.notes += meaning.notes
    lists = read_lists(folder, 'Segmentation', [sample.image for sample in samples])
    if meaning.are_objects:
        for sample, path in zip(samples, paths, strict=True):
            sample.objects = objects_of(path, meaning.classes[0])
        return _of_samples(data, samples, folder, lists)
    data.is_semantic, data.classes, data.palette = True, meaning.classes, meaning.palette
    pixels = {path: found for path, found in zip(paths, meaning.pixels, strict=True)}
    divided = _divide(samples, folder, lists, data)
    ends = {(sample.image.suffix, sample.annotation.name.removeprefix(sample.image.stem))
            for own in divided.values() for sample in own if sample.annotation}
    if len(ends) == 1 and not meaning.codes and all(map(is_plain, paths)):
        data.suffixes, = ends
        data.splits = {split: _split_of_maps(own, data.suffixes, pixels, folder) for split, own in divided.items()}
    if not data.splits or any(part.labels is None for part in data.splits.values()):
        data.suffixes = '', '.png'
        data.splits = {split: _split_of_maps(own, data.suffixes, pixels, folder, meaning)
                       for split, own in divided.items()}
    total = max(sum(sum(one.values()) for one in meaning.pixels), 1)
    shares = [(sum(one.get(index, 0) for one in meaning.pixels) / total, name)
              for index, name in enumerate(meaning.classes)]
    if rare := sorted(pair for pair in shares if 0 < pair[0] < RARE):
        data.notes.append(f'{len(rare)} classes have less than {RARE:.0%} of the pixels, the least {rare[0][1]} '
                          f'({rare[0][0]:.2%}): class_weight in model.decode_head.loss_decode gives them more weight.')
    return data


def _split_of_maps(samples: Sequence[Picture], ends: tuple[str, str], pixels: dict[Path, dict[int, int]],
                   folder: Folder, meaning: Meaning | None = None) -> Split:
    images = [sample.image for sample in samples]
    paths = [sample.annotation for sample in samples if sample.annotation]
    where = folder.root if meaning else Path(commonpath([image.parent for image in images]))
    coco = to_coco(samples, [], folder)
    for entry, image, path in zip(coco['images'], images, paths, strict=True):
        entry.update(file_name=image.relative_to(where).as_posix(), label_map=path, pixels=pixels[path])
    folders = folders_of(images, folder.root)
    if meaning:
        return Split(coco, where, None, False, folders, meaning)
    labels = Path(commonpath([path.parent for path in paths]))
    mirrored = all(path == labels / (str(image.relative_to(where))[:-len(ends[0])] + ends[1])
                   for image, path in zip(images, paths, strict=True))
    listed = {Path(place, name) for place, _, names in os.walk(where) for name in names if name.endswith(ends[0])}
    return Split(coco, where, labels if mirrored else None, listed == set(images), folders)


def _measured(samples: list[Picture], data: Data) -> list[Picture]:
    for sample, header in zip(samples, read_headers([sample.image for sample in samples]), strict=True):
        sample.size = header.width, header.height
        data.pixels[header.pixels] += 1
    return samples


def _divide(samples: Sequence[Picture], folder: Folder, lists: dict[str, list[Path]], data: Data
            ) -> dict[str, list[Picture]]:
    """Returns the samples of each split, after lists of their images, or after their folders."""
    if not lists:
        for sample in samples:
            lists.setdefault(split_of(sample.image, folder.root), []).append(sample.image)
    by_image = {sample.image: sample for sample in samples}
    out = by_image.keys() - {image for images in lists.values() for image in images}
    data.notes += told(sorted(map(folder.name, out)), 'images are in no list of a split and are left out')
    divided = {split: [by_image[image] for image in dict.fromkeys(lists.get(split, ())) if image in by_image]
               for split in SPLITS}
    return {split: own for split, own in divided.items() if own}


def _of_samples(data: Data, samples: Sequence[Picture], folder: Folder, lists: dict[str, list[Path]]) -> Data:
    nameless = next((sample.annotation for sample in samples for name, _ in sample.objects if not name), None)
    if nameless:
        raise UserError(f'{nameless} has an object without the name of a class: give it one.')
    if wrong := [sample for sample in samples if all(sample.stated) and sample.stated != sample.size]:
        (width, height), (stated_width, stated_height) = wrong[0].size, wrong[0].stated
        data.notes += told([f'{folder.name(wrong[0].image)} ({width} x {height} pixels, not {stated_width} x '
                            f'{stated_height})'] * len(wrong), 'images have another size than their annotation states',
                           ': their objects may lie elsewhere.')
    used = dict.fromkeys(sorted({name for sample in samples for name, _ in sample.objects}))
    data.tell_unused([name for name in data.classes if name not in used])
    data.classes = list(dict.fromkeys(name for name in data.classes if name in used) if data.classes else used)
    for split, own in _divide(samples, folder, lists, data).items():
        data.splits[split] = Split(to_coco(own, data.classes, folder), folder.root, folders=folders_of(
            [sample.image for sample in own], folder.root))
    return data


def _tell_splits(data: Data) -> None:
    images: dict[str, set[Path]] = {}
    for name, split in data.splits.items():
        images[name] = {split.images / image['file_name'] for image in split.coco['images']}
        if data.is_semantic:
            present = {data.classes[label] for image in split.coco['images'] for label in image['pixels']}
        else:
            names = {category['id']: category['name'] for category in split.coco['categories']}
            present = {names[one['category_id']] for one in split.coco['annotations']}
            full = {one['image_id'] for one in split.coco['annotations']}
            if empty := sum(image['id'] not in full for image in split.coco['images']):
                data.notes.append(f'{empty} images of {name} have no objects{EMPTY * (name == "train")}.')
        if missing := [name for name in data.classes if name not in present]:
            data.notes.append(f'{name} has no {"pixel" if data.is_semantic else "object"} of class '
                              f'{", ".join(missing)}.')
    for name in ('val', 'test'):
        both = sorted(images['train'] & images.get(name, set()))
        data.notes += told(both, f'images are in train and {name}', ': metrics will be too good.')
