"""A dataset's pipeline that names the file which is at fault."""
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
from mmengine.dataset import Compose

from cpvt_mm.errors import UserError, first_line

from .findings import Finding, Kind
from .images import decode
from .label_maps import Labels

Sample = dict[str, Any]
# Of loaders: mmcv's of images that OpenCV cannot decode, OpenCV's of no bytes, Pillow's of all.
LOADING_ERRORS = (AssertionError, cv2.error, OSError)


class CheckedPipeline(Compose):
    """Runs transforms, and looks at what was loaded: no further file is read, so it costs next to nothing.

    Args:
        transforms: Of the pipeline.
        labels: What values of label maps may be. Defaults to None: not looked at.
    """

    def __init__(self, transforms: Sequence[Callable[[Sample], Sample | None]], labels: Labels | None = None) -> None:
        super().__init__(transforms)
        self.labels = labels

    def __call__(self, data: Sample) -> Sample | None:
        """Transforms a sample.

        Raises:
            UserError: If a file cannot be decoded, sizes do not match, or a label is no class.
        """
        check_masks(data)
        for transform in self.transforms:
            was = set(data)
            try:
                data = transform(data)
            except FileNotFoundError:  # has the name
                raise
            except LOADING_ERRORS as error:
                fault = _unreadable_file(was, data, error)
                if fault is None:
                    raise
                raise UserError(f'{fault}: put the whole file there (tools/misc/check_dataset.py finds all such files).'
                                ) from error
            if data is None:
                return None
            if 'ori_shape' in data and 'ori_shape' not in was:
                check_size(data)
            if self.labels and 'gt_seg_map' in data and 'gt_seg_map' not in was:
                check_label_map(data, self.labels)
        return data


def _unreadable_file(loaded: set[str], data: Sample, error: Exception) -> str | None:
    """The file that a transform failed to load, and why; None if it failed with something else.

    Images are loaded first. Label maps may be loaded after transforms that fail for reasons of their own.
    """
    is_image = 'img' not in loaded
    path = data.get('img_path' if is_image else 'seg_map_path')
    if not path or 'gt_seg_map' in loaded:
        return None
    found = decode(path, Kind.IMAGE if is_image else Kind.LABEL_MAP)
    if isinstance(found, Finding):
        return f'{path} {found.detail}'
    return f'{path} cannot be read: {first_line(error)}' if is_image else None


def check_masks(data: Sample) -> None:
    """Raises a UserError if an RLE of mmdet's instances has another size than the image: mmdet would reshape it."""
    size = [data.get('height'), data.get('width')]
    for instance in data.get('instances', ()):
        mask = instance.get('mask')
        if isinstance(mask, dict) and None not in size and list(mask['size']) != size:
            raise UserError(f'a mask of image {data["img_path"]} is of size {mask["size"]}, but the image of {size} '
                            '(height, width): correct the annotation.')


def check_size(data: Sample) -> None:
    """Raises a UserError if a loaded image has another size than its annotation says."""
    expected, found = (data.get('height'), data.get('width')), tuple(data['ori_shape'])
    if None not in expected and expected != found:
        raise UserError(f'image {data["img_path"]} is {found[0]} x {found[1]} pixels (height x width), but '
                        f'{expected[0]} x {expected[1]} in the annotations: put the right image there.')


def check_label_map(data: Sample, labels: Labels) -> None:
    """Raises a UserError if a loaded label map has another size than its image, or a label that is no class."""
    label_map, size = data['gt_seg_map'], tuple(data['ori_shape'])
    if label_map.shape != size:
        raise UserError(f'label map {data["seg_map_path"]} is of shape {label_map.shape}, but its image is '
                        f'{size[0]} x {size[1]} pixels: put the right label map there.')
    # What is loaded are classes: zero is reduced already.
    unknown = [label for label in np.flatnonzero(np.bincount(label_map.ravel(), minlength=256))
               if label != labels.ignore_index and label >= labels.num_classes]
    if unknown:
        raise UserError(f'label map {data["seg_map_path"]} has class {unknown[0]}, but there are {labels.num_classes} '
                        'classes, counted from 0: correct it, or metainfo.classes and reduce_zero_label of the config.')
