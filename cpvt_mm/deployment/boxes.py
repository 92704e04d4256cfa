"""Post-processing of detectors: from the maps of a head to boxes.

These functions compute the same as `predict` of mmdet's heads, but for a whole batch. They do not branch on sizes:
every map gives the same number of candidates.
"""
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import ConfigDict
from torch import Tensor

from .operators import NO_BOX, nms, roi_align


def candidates(head: Any, maps: list[Tensor], img_shape: torch.Size) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Selects the `nms_pre` best boxes of each map.

    Args:
        head: An mmdet head with anchors.
        maps: Levels of the neck, each `(B, C, H, W)`.
        img_shape: Height and width of the image; boxes are clipped to it.

    Returns:
        Boxes `(B, N, 4)`, and scores, labels and levels `(B, N)`. If a small map has fewer boxes, the missing ones have
        the score NO_BOX.
    """
    class_maps, delta_maps = head(maps)
    anchors = head.prior_generator.grid_priors([x.shape[2:] for x in class_maps], device=maps[0].device)
    found = [_best(head, *level, img_shape) for level in zip(class_maps, delta_maps, anchors, strict=True)]
    boxes, scores, labels = (torch.cat(x, dim=1) for x in zip(*found, strict=True))
    levels = torch.arange(len(found), device=boxes.device).repeat_interleave(head.test_cfg.nms_pre)
    return boxes, scores, labels, levels.expand_as(labels)


def _best(head: Any, logits: Tensor, deltas: Tensor, anchors: Tensor, img_shape: torch.Size,
          ) -> tuple[Tensor, Tensor, Tensor]:
    logits = logits.permute(0, 2, 3, 1).reshape(len(logits), len(anchors), head.cls_out_channels)
    scores = logits.sigmoid() if head.use_sigmoid_cls else logits.softmax(-1)[..., :-1]
    count, classes = head.test_cfg.nms_pre, scores.shape[-1]
    scores, places = F.pad(scores.flatten(1), (0, count), value=NO_BOX).topk(count)
    places = places.where(scores > NO_BOX, 0)
    cells, labels = places // classes, places % classes
    deltas = pick(deltas.permute(0, 2, 3, 1).reshape(len(deltas), len(anchors), 4), cells)
    boxes = head.bbox_coder.decode(anchors[cells].flatten(0, 1), deltas.flatten(0, 1), max_shape=img_shape)
    return boxes.unflatten(0, cells.shape), scores, labels


def pick(x: Tensor, places: Tensor) -> Tensor:
    """Gathers the rows at indices `places`, `(B, K)`, from each image of `x`, `(B, N, C)`: `(B, K, C)`."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))


def suppress(boxes: Tensor, scores: Tensor, groups: Tensor, cfg: ConfigDict) -> tuple[Tensor, Tensor]:
    """Filters boxes by score and size, then by non-maximum suppression within each group.

    Args:
        boxes: `(B, N, 4)`.
        scores: `(B, N)`.
        groups: `(B, N)`: group numbers, from 0.
        cfg: The head's `test_cfg`, with `nms`, `max_per_img` and optionally `score_thr` and `min_bbox_size`.

    Returns:
        Image index and box index of the remaining boxes, both `(K,)`, sorted by image, then by decreasing score.
    """
    is_box = scores > cfg.get('score_thr', NO_BOX)
    if cfg.get('min_bbox_size', -1) >= 0:
        is_box = is_box & (boxes[..., 2:] - boxes[..., :2] > cfg.min_bbox_size).all(-1)
    # Groups are moved apart by mmcv's formula, because the offset rounds coordinates, and overlaps depend on that.
    largest = boxes.masked_fill(~is_box[..., None], -torch.inf).amax((1, 2))
    moved = boxes + (groups * (largest[:, None] + 1))[..., None]
    images, places = nms(moved, scores.where(is_box, NO_BOX), cfg.nms.iou_threshold, cfg.max_per_img).unbind(1)
    return images, places


def crop(extractor: Any, maps: list[Tensor], rois: Tensor) -> Tensor:
    """Samples the features of each box from the map of the level for its size.

    Args:
        extractor: A SingleRoIExtractor of mmdet.
        maps: Levels of the neck, each `(B, C, H, W)`.
        rois: `(K, 5)`: image, x1, y1, x2, y2.

    Returns:
        `(K, C, *output_size)`.
    """
    layers = extractor.roi_layers
    levels = extractor.map_roi_levels(rois, len(layers))
    crops = maps[0].new_zeros(len(rois), maps[0].shape[1], *layers[0].output_size)
    for level, (layer, x) in enumerate(zip(layers, maps, strict=False)):  # necks have more levels, for anchors only
        places = (levels == level).nonzero().flatten()
        cropped = roi_align(x, rois[places], list(layer.output_size), layer.spatial_scale, layer.sampling_ratio,
                            layer.aligned)
        crops = crops.index_put((places,), cropped)
    return crops


def with_image(images: Tensor, boxes: Tensor) -> Tensor:
    """Joins image indices `(K,)` and boxes `(K, 4)` to RoIs `(K, 5)`: image, x1, y1, x2, y2."""
    return torch.cat([images[:, None].to(boxes), boxes], dim=1)
