"""Makes data with classes and splits of the files of one format of annotations."""
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonpath
from pathlib import Path

from openmmlab_data.form.folder import IMAGE_WORDS, Folder, folders_of, words_of
from openmmlab_data.form.objects import Picture, read_headers, to_coco
from openmmlab_data.form.splits import Data, Meaning, Split, split_of
from openmmlab_runs.data.datasets import SPLITS
from openmmlab_runs.errors import UserError
from openmmlab_runs.texts import told

from .coco_files import COCO, read_coco_files
from .cvat import read_cvat
from .label_maps import LABEL_MAPS, is_plain, objects_of, understand
from .label_studio import read_label_studio
from .labelme import read_labelme
from .voc import read_lists, read_voc
from .yolo import describe_yolo, read_yolo

VOC, YOLO, LABELME, CVAT, LABEL_STUDIO = 'Pascal VOC', 'YOLO', 'LabelMe JSON', 'CVAT XML', 'Label Studio JSON'
RARE = 0.01  # of all pixels


@dataclass(frozen=True)
class Options:
    semantic: bool | None = None  # whether label maps are wanted, if there are other annotations, too; None: what is
    masks: str | None = None  # one of `label_maps.KINDS`; None: guessed
    colours: Path | None = None  # a file with classes and colours; None: one in the folder


DEFAULTS = Options()


def data_of(form: str, files: Sequence[Path], folder: Folder, options: Options, named: Path | None) -> Data:
    """Reads the files of a format; `named` is the one that the user named, if any."""
    if form == COCO:
        return read_coco_files(files, folder, named is not None)
    if form == LABEL_MAPS:
        return _of_label_maps(files, folder, options)
    if form == YOLO:
        return _of_yolo(files, folder, named)
    return (_of_one_file if form in (CVAT, LABEL_STUDIO) else _of_files)(form, files, folder)


def _of_files(form: str, files: Sequence[Path], folder: Folder) -> Data:
    """Reads one file of Pascal VOC or LabelMe for each image."""
    data = Data(form, folder.root, {})
    samples = _pictures(files, folder, 'XML file' if form == VOC else 'JSON file', data)
    data.notes += read_voc(samples) if form == VOC else read_labelme(samples)
    return _of_samples(data, samples, folder, read_lists(folder, 'Main', [sample.image for sample in samples]))


def _of_one_file(form: str, files: Sequence[Path], folder: Folder) -> Data:
    """Reads files of CVAT or Label Studio, each for many images."""
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
    """Reads txt files of YOLO; `named` is the file that describes them, if the user named it."""
    data, splits = Data(YOLO, folder.root, {}), dict[str, list[Path]]()
    about = describe_yolo(folder, named)
    outside = [place for places in (about.places or {}).values() for place in places
               if not place.is_relative_to(folder.root)]
    if outside:
        folder = Folder(folder.root, [_above(place) for place in outside])
        files = labels_of_yolo(folder)
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


def labels_of_yolo(folder: Folder) -> list[Path]:
    """Returns the txt files that belong to an image and begin with a number, or are empty."""
    def is_label(path: Path) -> bool:
        with path.open('rb') as file:
            return bool(re.match(rb'([-+.\d]|$)', file.read(256).removeprefix(b'\xef\xbb\xbf').strip()))

    return [path for path in folder.of('.txt') if folder.image_of(path) and is_label(path)]


def _above(place: Path) -> Path:
    """Returns the folder that has both images and labels, for a folder of images of YOLO."""
    parts = (place if place.is_dir() else place.parent).parts
    depth = next((depth for depth in range(len(parts) - 1, 0, -1) if set(words_of(parts[depth])) & IMAGE_WORDS), None)
    return Path(*parts[:depth])


def _of_label_maps(files: Sequence[Path], folder: Folder, options: Options) -> Data:
    """Reads label maps, of classes or of numbers of objects."""
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


def _pictures(files: Sequence[Path], folder: Folder, what: str, data: Data) -> list[Picture]:
    """Returns images with their annotation files, and notes what is left out: files and images without the other."""
    of_image, alone = folder.pair(files)
    near, labels = {image.parent for image in of_image}, set(files)
    bare = [path for path in folder.images if path.parent in near and path not in of_image and path not in labels]
    data.notes += [*told(alone, f'{what}s have no image of their own and are left out'),
                   *told(bare, f'images have no {what} and are left out')]
    return _measured([Picture(image, path) for image, path in of_image.items()], data)


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
