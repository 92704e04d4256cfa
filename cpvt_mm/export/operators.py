"""Custom torch operators for non-maximum suppression and RoIAlign.

torch.export cannot trace mmcv's functions, which are in a C++ extension. The operators here call mmcv in eager code;
`translations` maps them to `NonMaxSuppression` and `RoiAlign` of ONNX.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NO_BOX = -1.  # score of padding entries, which are not boxes


@torch.library.custom_op('cpvt_mm::nms', mutates_args=())
def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, max_per_img: int) -> Tensor:
    """Selects boxes `(B, N, 4)` of x1, y1, x2, y2 by non-maximum suppression, at most `max_per_img` of each image.

    Scores are `(B, N)`; boxes with the score NO_BOX are ignored. A box is suppressed if its IoU with a kept box of a
    higher score is above `iou_threshold`. Returns `(K, 2)`, int64: image index and box index of kept boxes, sorted by
    image, then by decreasing score.
    """
    from mmcv import ops
    kept = []
    for image in range(len(boxes)):
        places = (scores[image] > NO_BOX).nonzero().flatten()
        _, order = ops.nms(boxes[image, places], scores[image, places], iou_threshold, max_num=max_per_img)
        kept.append(torch.stack([torch.full_like(order, image), places[order]], dim=1))
    return torch.cat(kept)


@nms.register_fake
def _nms_shape(boxes: Tensor, scores: Tensor, iou_threshold: float, max_per_img: int) -> Tensor:
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), 2, dtype=torch.int64)


# torch 2.6 does not find the schema of list[int].
@torch.library.custom_op('cpvt_mm::roi_align', mutates_args=(), schema='(Tensor x, Tensor rois, SymInt[] size, '
                         'float scale, SymInt sampling_ratio, bool aligned) -> Tensor')
def roi_align(x: Tensor, rois: Tensor, size: list[int], scale: float, sampling_ratio: int, aligned: bool) -> Tensor:
    """Samples boxes `(K, 5)`, of image, x1, y1, x2, y2, of a map `(B, C, H, W)` on a grid: `(K, C, *size)`.

    `scale` is in cells of the map per pixel of the image; see `mmcv.ops.RoIAlign` for the other arguments.
    """
    from mmcv import ops
    return ops.roi_align(x, rois, size, scale, sampling_ratio, 'avg', aligned)


@roi_align.register_fake
def _roi_align_shape(x: Tensor, rois: Tensor, size: list[int], scale: float, sampling_ratio: int, aligned: bool,
                     ) -> Tensor:
    return x.new_empty(rois.shape[0], x.shape[1], *size)


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Returns a function for each operator that translates it to ONNX, for torch's `custom_translation_table`."""
    from onnxscript import INT64, opset18
    op: Any = opset18  # its annotations allow only tensors, but it accepts numbers as constants

    def to_nms(boxes: Any, scores: Any, iou_threshold: float, max_per_img: int) -> Any:
        # Columns: image, class, box. All boxes have one class here.
        kept = op.NonMaxSuppression(boxes, op.Unsqueeze(scores, [1]), [max_per_img], [iou_threshold], [NO_BOX])
        return op.Gather(kept, [0, 2], axis=1)

    def to_roi_align(x: Any, rois: Any, size: list[int], scale: float, sampling_ratio: int, aligned: bool) -> Any:
        boxes, images = op.Slice(rois, [1], [5], [1]), op.Cast(op.Gather(rois, 0, axis=1), to=INT64.dtype)
        return op.RoiAlign(x, boxes, images, output_height=size[0], output_width=size[1], spatial_scale=scale,
                           sampling_ratio=sampling_ratio,
                           coordinate_transformation_mode='half_pixel' if aligned else 'output_half_pixel')

    return {torch.ops.cpvt_mm.nms.default: to_nms, torch.ops.cpvt_mm.roi_align.default: to_roi_align}
