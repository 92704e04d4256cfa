"""Checks data while it is loaded, and names the faulty file in errors."""
import logging
import os.path
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import cv2
import numpy as np
from mmengine.dataset import Compose
from mmengine.logging import print_log

from openmmlab_tools.errors import UserError, as_sentence, first_line
from openmmlab_tools.pictures.images import check_regular
from openmmlab_tools.pictures.load_bands import LoadBandsFromFile

from .datasets import SampleFiles
from .findings import Kind
from .image_files import faults_of
from .named_files import compare_sizes

# mmcv's loader asserts that OpenCV can decode the image, OpenCV raises its own error for empty files, Pillow OSErrors.
# With python -O, which leaves out asserts, the loader asks None for its shape, as mmseg's loader of label maps always
# does with OpenCV.
LOADING_ERRORS = (AssertionError, AttributeError, cv2.error, OSError)


class CheckedPipeline(Compose):
    """Runs transforms and checks the loaded data of samples with a single image. It reads no additional files.

    Sizes of images must match the annotations if these are COCO's. Label maps may have the classes 0 to
    `num_classes - 1`, if it is known, and values that are `ignored`.
    """

    def __init__(self, transforms: Sequence[Callable[[dict[str, Any]], dict[str, Any] | None]], is_coco: bool = False,
                 num_classes: int | None = None, ignored: Collection[int] = (255,)) -> None:
        super().__init__(transforms)
        self.is_coco = is_coco
        self.num_classes = num_classes
        self.ignored = ignored

    def __call__(self, data: dict[str, Any]) -> dict[str, Any] | None:
        """Transforms a sample; a UserError if a file cannot be decoded, sizes differ, or a label is no class."""
        for key in ('img_path', 'seg_map_path') if _keys(data) else ():
            with suppress(FileNotFoundError):  # the loader says so, or reads it from another storage
                check_regular(data.get(key) or '')
        for transform in self.transforms:
            was = _keys(data)
            try:
                data = transform(data)
            except FileNotFoundError:  # contains the file name already
                raise
            except LOADING_ERRORS as error:
                fault = _unreadable_file(was, data, error) if was else None
                if fault is None:
                    raise
                raise UserError(f'{fault}: put the whole file there (the command check finds all such files).'
                                ) from error
            if data is None:
                return None
            loaded = _keys(data) - was
            if self.is_coco and 'ori_shape' in loaded:
                stated: Any = data.get('height'), data.get('width')
                _check_sizes(SampleFiles(data['img_path'], size=None if None in stated else stated), data)
            if self.num_classes and 'gt_seg_map' in loaded:
                _check_label_map(data, self.num_classes, self.ignored)
        return data


def _keys(data: Any) -> set[str]:
    """Returns the keys of a sample with a single image; an empty set for anything else."""
    return set(data) if isinstance(data, dict) and isinstance(data.get('img_path'), str) else set()


def _unreadable_file(loaded: set[str], data: dict[str, Any], error: Exception) -> str | None:
    """Returns the file that a transform failed to load and the reason; None if the transform failed otherwise."""
    is_image = 'img' not in loaded
    path = data.get('img_path' if is_image else 'seg_map_path')
    if not path or 'gt_seg_map' in loaded:
        return None
    # Only local files are decoded again.
    kind = Kind.IMAGE if is_image else Kind.LABEL_MAP
    for finding in faults_of(path, kind) if os.path.isfile(path) else ():
        if finding.kind is kind:  # 16 bits do not stop a loader
            return finding.sentence
    return f'{path} cannot be read: {first_line(error)}' if is_image else None


def _check_sizes(sample: SampleFiles, data: dict[str, Any], label_map: tuple[int, int] | None = None) -> None:
    """Raises a UserError if a loaded image has another size than its annotation or its label map."""
    for finding in compare_sizes(sample, tuple(data['ori_shape'][:2]), label_map):
        raise UserError(f'{finding.sentence}: {finding.kind.remedy} (the command check finds all).')


def _check_label_map(data: dict[str, Any], num_classes: int, ignored: Collection[int]) -> None:
    """Raises a UserError if a label map, loaded after its image, has another size or a label that is not a class."""
    label_map, is_first = data['gt_seg_map'], 'ori_shape' not in data
    if is_first or not isinstance(label_map, np.ndarray) or label_map.dtype.kind not in 'iu' or label_map.ndim != 2:
        return
    _check_sizes(SampleFiles(data['img_path'], data['seg_map_path']), data, label_map.shape)
    # Loaded values are classes: reduce_zero_label is applied already.
    unknown = [label for label in np.unique(label_map[label_map >= num_classes]) if label not in ignored]
    if unknown:
        raise UserError(f'label map {data["seg_map_path"]} has class {unknown[0]}, but there are {num_classes} '
                        'classes, counted from 0: correct it, or metainfo.classes and reduce_zero_label of the config.')


def load_first(dataset: Any, name: str) -> Any:
    """Loads the first sample of a dataset, and warns of faults of its image; a UserError with `name` if that fails."""
    path = dataset.get_data_info(0).get('img_path') if hasattr(dataset, 'get_data_info') else None
    loads_bands = any(isinstance(part, LoadBandsFromFile) for part in getattr(
        getattr(dataset, 'pipeline', None), 'transforms', ()))
    if isinstance(path, str) and os.path.isfile(path) and not loads_bands:
        for finding in faults_of(path, Kind.IMAGE):
            print_log(f'{finding.sentence}; the command check finds all such files.', 'current', logging.WARNING)
    with as_sentence(f'{name}: the pipeline fails on sample {path or 0}',
                     f'correct {name}.pipeline of the config, or the annotation', FileNotFoundError):
        return dataset[0]
