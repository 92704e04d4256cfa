"""Finds the datasets of configs and the layout of their annotations, and checks the annotations of a dataset."""
import errno
import os
from collections.abc import Iterator, Sequence
from json import JSONDecodeError
from typing import Any, Literal, NamedTuple

from mmengine.dataset import BaseDataset
from mmengine.fileio import list_dir_or_file
from mmengine.registry import DATASETS
from torch.utils.data import Dataset

from openmmlab_tools.config_walk import dicts
from openmmlab_tools.errors import FileFault, first_line
from openmmlab_tools.files import what_is
from openmmlab_tools.model_keys import Classes
from openmmlab_tools.texts import some

from .coco import read_coco, read_panoptic
from .coco_checks import check_coco
from .findings import Finding, Kind

SPLITS = ('train', 'val', 'test')
Layout = Literal['coco', 'panoptic', 'label maps', 'images']
MISSING = 'does not exist'
# The class that reads a layout, and the methods that a subclass must not override to read the same layout.
READERS: dict[Layout, tuple[tuple[str, str], tuple[str, ...]]] = {
    'coco': (('mmdet', 'CocoDataset'), ('load_data_list', 'parse_data_info', 'COCOAPI')),
    'panoptic': (('mmdet', 'CocoPanopticDataset'), ('load_data_list', 'parse_data_info', 'COCOAPI')),
    'label maps': (('mmseg', 'BaseSegDataset'), ('load_data_list',)),
}


class SampleFiles(NamedTuple):
    """The files of a sample: an image, its label map, and the annotated height and width; None where there is none."""
    image: str
    label_map: str | None = None
    size: tuple[int, int] | None = None


def unwrap(cfg: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the dotted name and the config of a dataset `cfg`, or of those that it wraps, as ConcatDataset does."""
    inner = [(key, part) for key, part in [
        *((f'datasets.{index}', part) for index, part in enumerate(_listed(cfg.get('datasets')))),
        ('dataset', cfg.get('dataset'))] if isinstance(part, dict) and 'type' in part]
    if not inner:
        yield name, cfg
    for key, part in inner:
        yield from unwrap(part, f'{name}.{key}')


def unwrap_built(dataset: Any) -> Iterator[Any]:
    wrapped = [*_listed(getattr(dataset, 'datasets', None)),
               *(getattr(dataset, name, None) for name in ('dataset', '_dataset'))]
    inner = [part for part in wrapped if isinstance(part, Dataset)]
    if not inner:
        yield dataset
    for part in inner:
        yield from unwrap_built(part)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def layout_of(cls: type) -> Layout:
    """Returns the layout of the annotations for a dataset's class; 'images' if the class reads another layout."""
    for layout, (reader, unchanged) in READERS.items():
        for base in cls.__mro__:
            if (base.__module__.split('.')[0], base.__name__) == reader and all(
                    getattr(cls, name) is getattr(base, name) for name in unchanged):
                return layout
    return 'images'


def build_unread(cfg: dict[str, Any]) -> BaseDataset:
    """Builds a dataset with its paths and classes, in the default scope, but without reading files."""
    return DATASETS.build({**cfg, 'lazy_init': True, 'pipeline': []})


def classes_of(dataset: Any) -> list[str]:
    """Returns the classes of a dataset, in the order of its labels; empty if it does not state them."""
    classes = getattr(dataset, 'metainfo', {}).get('classes') or ()
    return [classes] if isinstance(classes, str) else list(classes)


def known_classes(dataset: Any) -> Classes | None:
    """Returns the classes of a dataset, in the order of its labels; None if it does not state them.

    Raises a FileFault if a panoptic dataset does not tell which of them are things, and then which are stuff.
    """
    names = classes_of(dataset)
    if not names or layout_of(type(dataset)) != 'panoptic':
        return Classes(names) if names else None
    parts = {key: list(dataset.metainfo.get(key) or ()) for key in ('thing_classes', 'stuff_classes')}
    if [*parts['thing_classes'], *parts['stuff_classes']] != names:
        raise FileFault(dataset.ann_file, f'has {len(names)} classes ({some(names)}), but these are not the '
                        f'{len(parts["thing_classes"])} thing_classes and {len(parts["stuff_classes"])} '
                        'stuff_classes, in this order: set classes, thing_classes and stuff_classes in metainfo of the '
                        'dataset')
    return Classes(names, len(parts['stuff_classes']))


def loads_masks(cfg: dict[str, Any]) -> bool:
    """Returns whether a transform in the pipeline of a dataset's config loads masks of instances."""
    return any(transform.get('with_mask') for transform in dicts(cfg.get('pipeline')))


def check_annotations(dataset: BaseDataset, needs_masks: bool, is_evaluated: bool
                      ) -> tuple[list[Finding], list[SampleFiles]]:
    """Returns the faults of the annotations of a dataset (see `build_unread`), and its samples; decodes no image.

    It raises a FileNotFoundError if the annotation file or the folder of images does not exist, and a FileFault if
    the annotation file cannot be read, or there is no image.
    """
    layout, file = layout_of(type(dataset)), dataset.ann_file
    if layout == 'label maps':
        return _check_label_maps(dataset)
    if layout == 'images':
        try:
            dataset.full_init()
        except JSONDecodeError as error:
            raise FileFault(file, f'is not JSON ({first_line(error)}): put the whole file there') from error
        paths = [dataset.get_data_info(index).get('img_path') for index in range(len(dataset))]
        name = type(dataset).__name__
        note = Finding(Kind.NOT_CHECKED, file or name, f'belongs to a {name}, of which only images are checked')
        return [note], [SampleFiles(path) for path in paths if path]
    is_panoptic = layout == 'panoptic'
    coco = (read_panoptic if is_panoptic else read_coco)(file, dataset.backend_args)
    if not coco['annotations'] and (dataset.filter_cfg or {}).get('filter_empty_gt') and not dataset.test_mode:
        raise FileFault(file, 'has no annotations, and filter_cfg.filter_empty_gt skips images without annotations, so '
                        'there is nothing to train on: use a file with annotations')
    samples = [SampleFiles(os.path.join(dataset.data_prefix['img'], image['file_name']),
                           size=(image['height'], image['width'])) for image in coco['images']]
    faults = [*((Kind.REPAIR, repair) for repair in coco.repairs),
              *check_coco(coco, classes_of(dataset), needs_masks and not is_panoptic, is_evaluated)]
    return [Finding(kind, file, detail) for kind, detail in faults], samples


def _check_label_maps(dataset: BaseDataset) -> tuple[list[Finding], list[SampleFiles]]:
    file = dataset.ann_file
    if file:  # mmseg passes over a list of names that is a folder
        fault = 'is an address, but mmseg reads a list of names from the disk' if '://' in file else what_is(file)
        if fault == MISSING:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        if fault:
            raise FileFault(file, f'{fault}: put a file with one name in each line there, or leave out ann_file to '
                            'read the whole folder')
    samples = [SampleFiles(sample['img_path'], sample.get('seg_map_path')) for sample in dataset.load_data_list()]
    if not samples:
        where = file or f'{dataset.data_prefix["img_path"]} (*{dataset.img_suffix})'
        raise FileFault(where, 'has no image: put the data there, or correct the path or img_suffix in the config')
    known = {sample.label_map for sample in samples if sample.label_map}
    if file or not known:  # a list may contain only a part of the folder, and a test set has no label maps
        return [], samples
    folder = dataset.data_prefix['seg_map_path']
    paths = [os.path.join(folder, name) for name in listed(dataset, folder, dataset.seg_map_suffix)]
    return [Finding(Kind.LABEL_MAP_ALONE, path, f'has no image in {dataset.data_prefix["img_path"]}')
            for path in paths if path not in known], samples


def listed(dataset: BaseDataset, folder: str, suffixes: str | tuple[str, ...] | None = None, recursive: bool = True
           ) -> list[str]:
    """Returns the names of files in a dataset's folder, by default in all levels, sorted; none if it does not exist."""
    try:
        return sorted(list_dir_or_file(folder, list_dir=False, suffix=suffixes, recursive=recursive,
                                       backend_args=dataset.backend_args))
    except (FileNotFoundError, NotADirectoryError):
        return []
