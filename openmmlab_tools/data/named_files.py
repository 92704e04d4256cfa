"""Compares the files that annotations name with those that are there, by one list of each folder, and their sizes."""
import os.path
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.fileio import get_file_backend, isfile

from openmmlab_tools.config_walk import walk
from openmmlab_tools.errors import UserError
from openmmlab_tools.files import IMAGE_SUFFIXES, what_is
from openmmlab_tools.pictures.bands import read_header

from .datasets import MISSING, SampleFiles, layout_of, listed
from .findings import Finding, Kind

Size = tuple[int, int]  # height and width in pixels


def check_presence(dataset: BaseDataset, cfg: dict[str, Any], samples: Sequence[SampleFiles]) -> list[Finding]:
    """Finds files that COCO's or ADE20K's annotations name and that are not there, and images beside them."""
    layout = layout_of(type(dataset))
    if layout == 'images' or not _loads('LoadImageFromFile', cfg):
        return []
    backend_args = dataset.backend_args

    def can_list(folder: str) -> bool:  # some servers cannot
        return hasattr(get_file_backend(folder, backend_args=backend_args), 'list_dir_or_file')

    names_in = cache(lambda folder: {*listed(dataset, folder, recursive=False)})

    def fault_of(path: str) -> str:
        folder, name = os.path.split(path)
        if not can_list(folder or os.curdir) or name in names_in(folder or os.curdir):
            return ''
        if '://' not in path:
            return what_is(path)
        # Lists have no hidden files.
        return '' if name.startswith('.') and isfile(path, backend_args=backend_args) else MISSING

    images = {sample.image for sample in samples}
    maps = {sample.label_map for sample in samples if sample.label_map} if _loads('LoadAnnotations', cfg) else set()
    if layout == 'panoptic' and _loads('LoadPanopticAnnotations', cfg) and (folder := dataset.data_prefix.get('seg')):
        maps = {os.path.join(folder, os.path.relpath(path, dataset.data_prefix['img']).replace('.jpg', '.png'))
                for path in images}  # as mmdet does
    findings = [Finding(kind, path, fault) for kind, paths in ((Kind.IMAGE, images), (Kind.LABEL_MAP, maps))
             for path in sorted(paths) if (fault := fault_of(path))]
    known = {_place(path) for path in images | maps}
    if layout != 'label maps':
        beside = [os.path.join(folder, name) for folder in dict.fromkeys(
            os.path.dirname(path) or os.curdir for path in images) if can_list(folder) for name in names_in(folder)]
        reason = f'is not named by {dataset.ann_file}'
    else:  # a list of names may be a part of the folder
        root = dataset.data_prefix['img_path']
        reason = f'does not end with {dataset.img_suffix} (img_suffix)'
        beside = [os.path.join(root, name) for name in listed(dataset, root) if not name.endswith(
            (dataset.img_suffix, dataset.seg_map_suffix))] if not dataset.ann_file and can_list(root) else []
    return findings + [Finding(Kind.NOT_NAMED, path, reason) for path in sorted(beside)
                    if path.lower().endswith(IMAGE_SUFFIXES) and _place(path) not in known]


def _place(path: str) -> str:
    return path if '://' in path else os.path.normpath(path)


def _loads(name: str, cfg: dict[str, Any]) -> bool:
    """Returns whether a transform in the pipeline of a config has this name, and reads from where the dataset reads."""
    for _, step in walk(cfg.get('pipeline') or ()):
        kind = step.get('type')
        kind = kind.__name__ if isinstance(kind, type) else str(kind).rpartition('.')[2]
        if kind == name:
            return (step.get('backend_args') or None) == (cfg.get('backend_args') or None) and not step.get(
                'file_client_args')
    return False


def compare_sizes(sample: SampleFiles, image: Size, label_map: Size | None = None, turn: int = 1) -> Iterator[Finding]:
    """Compares the sizes of a sample's image, as it is loaded, its label map and its annotations.

    Adds a note if EXIF data turns the image (see `orientation`) but the sizes do not show whether its annotations are
    turned as well.
    """
    for kind, file, size, other, but in (
            (Kind.IMAGE_SIZE, sample.image, image, sample.size, '{} x {} in the annotations'),
            (Kind.LABEL_MAP_SIZE, sample.label_map, label_map, image, 'its image {} x {}')):
        if size and other and size != other:
            cause = ', which its EXIF data turns' if turn >= 5 and size == other[::-1] else ''
            yield Finding(kind, str(file), f'is {size[0]} x {size[1]} pixels (height x width), but {but.format(*other)}'
                          + cause)
        elif size and other and turn > 1 and (turn < 5 or size[0] == size[1]):
            yield Finding(Kind.TURNED, sample.image, f'is turned when it is loaded (EXIF orientation {turn}), and '
                          'sizes do not show whether its annotations are turned as well: if not, remove its EXIF data')


def check_sizes(samples: Sequence[SampleFiles], step: int = 1) -> list[Finding]:
    """Compares the sizes in the headers of local files, for every `step`-th sample. Other checks report unreadable
    files.
    """
    with ThreadPoolExecutor() as threads:
        return [finding for findings in threads.map(_check, samples[::step]) for finding in findings]


def _check(sample: SampleFiles) -> list[Finding]:
    with suppress(UserError):
        image, size = read_header(sample.image), None
        if sample.label_map:
            label_map = read_header(sample.label_map)
            # A loader of label maps does not turn them.
            size = (label_map.width, label_map.height) if label_map.turn >= 5 else (label_map.height, label_map.width)
        return [*compare_sizes(sample, (image.height, image.width), size, image.turn)]
    return []
