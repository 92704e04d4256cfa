"""Finds out what a folder of data has: its format, splits, classes, images and annotations."""
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from openmmlab_tools.errors import UserError
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.form.folder import LABEL_WORDS, Folder, words_of
from openmmlab_tools.readers.form.splits import take_share
from openmmlab_tools.texts import some, told

from .coco_files import read_coco_files
from .csv_boxes import find_csv, name_columns, read_csv
from .cvat import read_cvat
from .label_maps import find_label_maps, read_label_maps, several_masks, unnamed_label_maps
from .label_studio import read_label_studio
from .labelme import read_labelme, with_embedded
from .layouts import COCO, CSV, CVAT, LABEL_MAPS, LABEL_STUDIO, LABELME, VOC, YOLO, Reading, ReadingOptions
from .tools import name_files, name_tool, recognise
from .voc import read_voc
from .yolo import labels_of_yolo, read_yolo

READERS: dict[str, Callable[[Reading], LabelledData]] = {
    COCO: read_coco_files, VOC: read_voc, YOLO: read_yolo, LABELME: read_labelme, CVAT: read_cvat,
    LABEL_STUDIO: read_label_studio, LABEL_MAPS: read_label_maps, CSV: read_csv}
KNOWN = f'{COCO}, {VOC}, {YOLO}, {LABELME}, {CVAT}, {LABEL_STUDIO}, {CSV} or {LABEL_MAPS}'
NAMED = ('.json', '.xml', '.csv', '.yaml', '.yml', '.data')  # suffixes of files that can be named
DEFAULTS = ReadingOptions()
SHARE = 0.2  # of the images, for validation


def find_data(source: Path, options: ReadingOptions = DEFAULTS, val: str | None = None, seed: int = 0,
              group_by: str | None = None) -> LabelledData:
    """Reads the annotations of a folder or file, and the sizes of all images.

    Args:
        source: A folder with one kind of annotations, or one of its files: COCO, CVAT, Label Studio, or data.yaml.
        options: See `ReadingOptions`.
        val: A folder or file for validation, or without a split for it, the share of the images to take. Defaults to
            None: that split, or else a fifth.
        seed: Which images the share has. Defaults to 0.
        group_by: A regular expression: images in whose paths it finds the same are all in the share, or none is; see
            `choose_groups`. Defaults to None: each image is on its own.

    Raises:
        UserError: If there is no data, no annotation, several formats, a file that cannot be read, or a share or
            groups for data with a split for validation.
    """
    data = _read(source, options)
    trained = data.splits.get('train', ())
    if 'train' not in data.splits or not (data.is_semantic or any(picture.objects for picture in trained)):
        told = '; '.join(note.rstrip('.') for note in data.notes)
        raise UserError(f'{source} has no annotation to train on ({told}): pass the folder or file with the '
                        'annotations for training.')
    is_share = val is None or re.fullmatch(r'\d*\.?\d+', val)
    if group_by is not None and not (is_share and 'val' not in data.splits):
        raise UserError(f'group_by is {group_by}, but the data already has a split for validation: leave group_by out.')
    if val is not None and not is_share:
        beside = options.embedded and options.embedded.with_name(f'{options.embedded.name}_val')  # names may be equal
        _validate_on(_read(Path(val), replace(options, embedded=beside)), val, data)
    elif 'val' not in data.splits:
        take_share(data, SHARE if val is None else float(val), seed, group_by)
    elif val is not None:
        raise UserError(f'val is {val}, a share of the images, but {source} already has a split for validation: leave '
                        'val out, or pass a folder or file.')
    data.notes += data.about_splits()
    return data


def _validate_on(other: LabelledData, val: str, data: LabelledData) -> None:
    """Uses the images of other data for validation. Raises a UserError if its labels are of another kind."""
    if other.form != data.form or other.is_semantic != data.is_semantic:
        raise UserError(f'{val} has {other.form}, but {data.root} has {data.form}: pass labels of the same kind.')
    data.pixels += other.pixels
    data.validation = other.account
    data.splits['val'] = other.splits.get('val') or next(iter(other.splits.values()))
    short, long = sorted((data.classes, other.classes), key=len)
    if data.is_semantic and long[:len(short)] != short:
        raise UserError(f'{val} has the classes {some(other.classes)}, but {data.root} has {some(data.classes)}. Use '
                        'the same list of classes for training and validation.')
    data.classes += [name for name in other.classes if name not in data.classes]
    data.notes += [note for note in other.notes if note not in data.notes]


def _read(source: Path, options: ReadingOptions) -> LabelledData:
    is_file, suffix = source.is_file(), source.suffix.lower()
    if not source.exists() or (not source.is_dir() and suffix not in NAMED):
        raise UserError(f'{source} {"is a file in an unknown format" if source.exists() else "does not exist"}: pass '
                        'a folder, a COCO file, or the data.yaml of YOLO.')
    root = source.parent if is_file else source
    if is_file and set(words_of(root.resolve().name)) & LABEL_WORDS:
        root = root.parent
    folder = Folder(root)
    by_format = _find_formats(folder, source)
    folder.labels = {path for files in by_format.values() for path in files}
    if options.embedded and by_format.get(LABELME):
        folder = with_embedded(by_format[LABELME], folder, options.embedded)
    if not folder.images and not (is_file and suffix not in ('.json', '.xml', '.csv')):
        raise UserError(f'{name_files(folder) or name_tool(folder) or _without_images(source, folder)}.')
    # The description of YOLO may name folders elsewhere.
    by_format = {form: files for form, files in by_format.items() if files or is_file}
    chosen = {form: files for form, files in by_format.items() if options.semantic in (None, form == LABEL_MAPS)}
    # Label maps may hold numbers of objects.
    chosen = chosen or ({} if options.semantic else by_format)
    tables = chosen.pop(CSV, None) if len(chosen) > 1 else None  # which many tools write beside their own format
    notes = list[str]()
    if not chosen and options.semantic is not False and not name_tool(folder) and (
            unnamed := unnamed_label_maps(folder)):
        folder.take_for_labels(unnamed[0])
        chosen, notes = {LABEL_MAPS: _label_maps(folder, [])}, [unnamed[1]]
        folder.labels = {*chosen[LABEL_MAPS]}
    if not chosen:
        raise UserError(f'{_why_nothing(source, folder, options)}.')
    if len(chosen) > 1:
        forms = ' and '.join(f'{form} ({folder.name(files[0])})' for form, files in chosen.items())
        raise UserError(f'{source} has {forms}. Pass the file or folder of one layout, or a --task that only one '
                        'layout has.')
    (form, files), = chosen.items()
    data = READERS[form](Reading(files, folder, options, source if is_file else None))
    data.notes += notes + folder.left_out + told(tables or (), f'CSV files are skipped, because there are {form}')
    data.close(folder)
    return data


def _without_images(source: Path, folder: Folder) -> str:
    counts = Counter(path.suffix.lower() or 'no suffix' for path in folder.files)
    content = some([f'{count} of {suffix}' for suffix, count in counts.most_common()])
    return f'{source} has no images, {f"only files: {content}" if counts else "and is empty"}: name the folder with ' \
           'images and annotations'


def _why_nothing(source: Path, folder: Folder, options: ReadingOptions) -> str:
    """Returns why a folder of images has no annotations that can be read, and what to do."""
    named = several_masks(folder)
    if options.semantic is not True:
        named = named or name_tool(folder) or name_columns(folder)
    if named := named or name_files(folder):
        return named
    labels = 'label maps' if options.semantic else 'annotations'
    return (f'{source} has {len(folder.images)} images, but no {labels} of them in a known format ({KNOWN}): put them '
            'beside the images, or in folders annotations/, labels/ or masks/ beside images/')


def _find_formats(folder: Folder, source: Path) -> dict[str, list[Path]]:
    if source.is_file():
        path = Path(os.path.abspath(source))
        tool = recognise(path)
        if tool and not tool.layout:
            raise UserError(f'{tool.says(path)}.')
        default = {'.json': COCO, '.xml': COCO, '.csv': CSV}.get(path.suffix.lower(), YOLO)
        form = tool.layout if tool and tool.layout not in (VOC, LABELME) else default
        return {form: labels_of_yolo(folder) if form == YOLO else [path]}
    files: dict[str, list[Path]] = {form: [] for form in READERS}
    for path in folder.with_suffix('.json', '.xml'):
        if (tool := recognise(path)) and tool.layout:
            files[tool.layout].append(path)
    files[YOLO], files[CSV] = labels_of_yolo(folder), find_csv(folder)
    files[LABEL_MAPS] = _label_maps(folder, files[COCO])
    if len([*filter(None, files.values())]) > 1 and not any(path.stat().st_size for path in files[YOLO]):
        files[YOLO] = []  # empty files do not count as YOLO if another layout was found
    return files


def _label_maps(folder: Folder, panoptic: Sequence[Path]) -> list[Path]:
    """Returns the label maps of photos, but no PNG files of panoptic annotations, which lie in folders of their names.
    """
    maps, names = set(find_label_maps(folder)), {path.stem for path in panoptic}
    return [path for path in sorted(maps) if names.isdisjoint(path.parts)
            and (pair := folder.image_of(path)) and pair[1] not in maps]


def task_for(data: LabelledData, task: str | None, of_model: str | None) -> str:
    """Returns the task: the given task, else the model's task, else the task that uses most of the annotations."""
    bare, total = without_masks(data)
    possible = ['semantic'] if data.is_semantic else ['boxes'] if bare else ['instances', 'boxes']
    task = task or of_model or possible[0]
    if task not in possible:
        why = f' ({len(bare)} of {total} objects have no mask, such as one of {bare[0]})' if bare and len(
            bare) < total and task == 'instances' else ''
        raise UserError(f'{data.root} has {data.form} for {" or ".join(possible)}{why}, but the task is {task}: choose '
                        'another --task, or another model.')
    if of_model not in (None, task):
        raise UserError(f'the model is for {of_model}, but the task is {task}: choose another --task or model.')
    return task


def without_masks(data: LabelledData) -> tuple[list[str], int]:
    """Returns the images of objects without a mask, each as often as it has such objects, and the number of objects."""
    masks = [(bool(other.keys.get('segmentation')), picture.path.name) for pictures in data.splits.values()
             for picture in pictures for other in picture.objects]
    return [name for has_mask, name in masks if not has_mask], len(masks)


def about_masks(data: LabelledData, task: str) -> list[str]:
    """Returns a sentence about masks that a task for boxes, which nobody asked for, does not use."""
    bare, total = without_masks(data)
    return [f'{total - len(bare)} of {total} objects have a mask, but the task is boxes, because {len(bare)} have '
            f'none, such as one of {bare[0]}: give these a mask, or remove them, to train on masks. --task boxes says '
            'that boxes are enough.'] if task == 'boxes' and 0 < len(bare) < total else []
