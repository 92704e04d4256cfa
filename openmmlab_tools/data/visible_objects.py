"""A transform that drops objects without a pixel in the image, and fits boxes to masks."""
from typing import Any

import numpy as np
from mmcv.transforms import BaseTransform

from openmmlab_tools.errors import UserError
from openmmlab_tools.registry import TRANSFORMS

OF_OBJECTS = ('gt_bboxes', 'gt_bboxes_labels', 'gt_ignore_flags', 'gt_instances_ids', 'gt_masks')


@TRANSFORMS.register_module()
class KeepVisibleObjects(BaseTransform):
    """Drops objects whose mask has no pixel in the image, and fits the boxes of the other objects to their masks.

    mmdet's transforms keep an object if its box is in the image. After a crop, an L-shaped object may have a box but no
    pixel in the image, and a small object may lose all its pixels when it is resized. Put this transform after all
    transforms that crop, resize or move objects, and before `PackDetInputs`. Without masks, boxes stay unchanged.

    If an image has lost all its objects, the dataset draws another image, as after a `RandomCrop`. Images without
    annotated objects stay in training; set `allow_negative_crop=True` in `RandomCrop` for them.

    Args:
        allow_negative: Whether to keep images that have lost all their objects, as background. Set it to True if
            another pipeline wraps this one, as `MultiImageMixDataset` does. Defaults to False.
    """

    def __init__(self, allow_negative: bool = False) -> None:
        self.allow_negative = allow_negative

    def transform(self, results: dict[str, Any]) -> dict[str, Any] | None:
        """Changes the objects of a sample of mmdet; returns None if the dataset should draw another image."""
        masks, boxes = results.get('gt_masks'), results['gt_bboxes']
        if masks is not None and (len(masks) or len(boxes)):
            image = tuple(results['img_shape'][:2])
            if len(masks) != len(boxes) or (masks.height, masks.width) != image:
                raise UserError(
                    f'{results.get("img_path")} has {len(masks)} masks of {masks.width} x {masks.height} pixels, but '
                    f'{len(boxes)} boxes in an image of {image[1]} x {image[0]} pixels: in the pipeline, a transform '
                    'before KeepVisibleObjects changes the image, but not its masks. Leave that transform out.')
            pixels = masks.to_bitmap() if hasattr(masks, 'to_bitmap') else masks  # from polygons
            is_numpy = isinstance(boxes, np.ndarray)  # with box_type=None of LoadAnnotations
            fitted = pixels.get_bboxes('hbox').numpy() if is_numpy else pixels.get_bboxes(type(boxes))
            results = dict(results, gt_bboxes=fitted)
            results.update({key: results[key][pixels.areas > 0] for key in OF_OBJECTS if key in results})
        has_lost_all = not len(results['gt_bboxes']) and results.get('instances')
        return None if has_lost_all and not self.allow_negative else results
