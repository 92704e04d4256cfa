"""Detectors of mmdet with boxes (RetinaNet, Faster and Mask R-CNN): `predict` for a batch, without branches on sizes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import ConfigDict
from torch import Tensor, nn

from openmmlab_runs.errors import UserError

NO_BOX = -1.  # score of padding entries, which are not boxes


@torch.library.custom_op('cpvt_mm::nms', mutates_args=())
def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, max_per_img: int) -> Tensor:
    """Selects boxes `(B, N, 4)` of x1, y1, x2, y2 by non-maximum suppression, at most `max_per_img` of each image.

    Scores are `(B, N)`; NO_BOX marks boxes to ignore. A box goes if its IoU with a kept one of a higher score is above
    `iou_threshold`. Returns image and box indices `(K, 2)`, int64, by image, then by decreasing score.
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

    `scale` is in cells of the map per pixel of the image; the rest is as in `mmcv.ops.RoIAlign`.
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


Detections = dict[str, Tensor]


class Detector(nn.Module):
    """An exportable wrapper of an mmdet detector; `test_cfg` is that of its last step.

    It takes images `(B, 3, H, W)`, and returns one dict for all: `dets` `(N, 5)`, x1, y1, x2, y2 in pixels and the
    score; `labels` `(N,)`; `images` `(N,)`, the index in the batch; and, with a mask head, `masks` `(N, h, w)`,
    probabilities on a grid over the box.
    """

    def __init__(self, model: Any, test_cfg: ConfigDict) -> None:
        super().__init__()
        self.model = model
        self.test_cfg = test_cfg


class OneStage(Detector):
    """A RetinaNet."""

    def forward(self, image: Tensor) -> Detections:
        maps = self.model.extract_feat(image)
        boxes, scores, labels, _ = _candidates(self.model.bbox_head, maps, image.shape[2:])
        return _detections(boxes, scores, labels, self.test_cfg)


class TwoStage(Detector):
    """A Faster R-CNN or Mask R-CNN."""

    def forward(self, image: Tensor) -> Detections:
        maps, head = self.model.extract_feat(image), self.model.roi_head
        boxes, is_box = self._proposals(maps, image.shape[2:])
        batch, count = is_box.shape
        images = torch.arange(batch, device=boxes.device).repeat_interleave(count)
        rois = _with_image(images, boxes.flatten(0, 1))
        logits, deltas = head.bbox_head(_crop(head.bbox_roi_extractor, maps, rois))
        scores = logits.softmax(-1)[:, :-1]
        classes = scores.shape[1]
        refined = 1 if head.bbox_head.reg_class_agnostic else classes
        boxes = head.bbox_head.bbox_coder.decode(
            rois[:, 1:].repeat_interleave(refined, dim=0), deltas.reshape(-1, 4), max_shape=image.shape[2:])
        boxes = boxes.reshape(batch, count, refined, 4).expand(-1, -1, classes, -1)
        scores = scores.reshape(batch, count, classes).where(is_box[..., None], NO_BOX)
        labels = torch.arange(classes, device=boxes.device).expand_as(scores)
        found = _detections(boxes.flatten(1, 2), scores.flatten(1), labels.flatten(1), self.test_cfg)
        return {**found, 'masks': self._masks(maps, found)} if head.with_mask else found

    def _proposals(self, maps: list[Tensor], img_shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Returns boxes, `(B, N, 4)`, and which of them are proposals, `(B, N)`. Their number differs by image."""
        rpn = self.model.rpn_head
        boxes, scores, _, levels = _candidates(rpn, maps, img_shape)
        kept = _suppress(boxes, scores, levels, rpn.test_cfg)
        scores = torch.full_like(scores, NO_BOX).index_put(kept, scores[kept])
        scores, places = scores.topk(min(rpn.test_cfg.max_per_img, scores.shape[1]))
        return _pick(boxes, places), scores > NO_BOX

    def _masks(self, maps: list[Tensor], found: Detections) -> Tensor:
        head, labels = self.model.roi_head, found['labels']
        # Runtimes fail to reshape empty tensors, if there is no box. So one more box, of size 0, is appended; the last
        # line drops its mask.
        rois = F.pad(_with_image(found['images'], found['dets'][:, :4]), (0, 0, 0, 1))
        logits = head.mask_head(_crop(head.mask_roi_extractor, maps, rois))
        labels = torch.zeros_like(labels) if head.mask_head.class_agnostic else labels
        return logits[torch.arange(len(labels), device=labels.device), labels].sigmoid()


def _detections(boxes: Tensor, scores: Tensor, labels: Tensor, cfg: ConfigDict) -> Detections:
    kept = _suppress(boxes, scores, labels, cfg)
    return dict(dets=torch.cat([boxes, scores[..., None]], dim=-1)[kept], labels=labels[kept], images=kept[0])


def to_detector(model: Any) -> Detector:
    """Wraps a detector of mmdet; raises a UserError if detectors of this kind cannot be exported."""
    for part, is_known in _parts(model):
        if not is_known:
            raise UserError(f'a {type(part).__name__} cannot be exported, only RetinaNet, Faster R-CNN and Mask R-CNN '
                            'with their standard heads: export the backbone alone, with --part backbone.')
    two_stage = hasattr(model, 'roi_head')
    for cfg in [model.test_cfg.rpn, model.test_cfg.rcnn] if two_stage else [model.test_cfg]:
        if cfg.nms.get('type', 'nms') != 'nms' or 'iou_threshold' not in cfg.nms:
            raise UserError(f'a detector with nms={dict(cfg.nms)} in its test_cfg cannot be exported: set nms to '
                            "dict(type='nms', iou_threshold=0.5).")
    return TwoStage(model, model.test_cfg.rcnn) if two_stage else OneStage(model, model.test_cfg)


def _parts(model: Any) -> Iterator[tuple[nn.Module, bool]]:
    """Yields the parts of a detector that determine its predictions, and whether each is of a supported class."""
    from mmcv import ops
    from mmdet import models
    if not isinstance(model, models.TwoStageDetector):
        head = getattr(model, 'bbox_head', model)
        yield head, isinstance(head, models.RetinaHead)
        return
    head, rpn = model.roi_head, getattr(model, 'rpn_head', model)
    yield model, type(model).predict is models.TwoStageDetector.predict  # panoptic detectors override it
    yield head, type(head) is models.StandardRoIHead
    yield rpn, isinstance(rpn, models.RPNHead)
    yield head.bbox_head, isinstance(head.bbox_head, models.BBoxHead)
    if head.with_mask:
        yield head.mask_head, isinstance(head.mask_head, models.FCNMaskHead)
    for extractor in (head.bbox_roi_extractor, *([head.mask_roi_extractor] if head.with_mask else [])):
        yield extractor, isinstance(extractor, models.SingleRoIExtractor)
        yield from ((layer, isinstance(layer, ops.RoIAlign)) for layer in extractor.roi_layers)


def _candidates(head: Any, maps: list[Tensor], img_shape: torch.Size) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the `nms_pre` best boxes `(B, N, 4)` of each map, and scores (or NO_BOX), labels and levels `(B, N)`."""
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
    deltas = _pick(deltas.permute(0, 2, 3, 1).reshape(len(deltas), len(anchors), 4), cells)
    boxes = head.bbox_coder.decode(anchors[cells].flatten(0, 1), deltas.flatten(0, 1), max_shape=img_shape)
    return boxes.unflatten(0, cells.shape), scores, labels


def _pick(x: Tensor, places: Tensor) -> Tensor:
    """Gathers the rows at indices `places`, `(B, K)`, from each image of `x`, `(B, N, C)`: `(B, K, C)`."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))


def _suppress(boxes: Tensor, scores: Tensor, groups: Tensor, cfg: ConfigDict) -> tuple[Tensor, Tensor]:
    """Returns image and box index, `(K,)`, of boxes left by score, size, and `nms` within groups, numbered from 0."""
    is_box = scores > cfg.get('score_thr', NO_BOX)
    if cfg.get('min_bbox_size', -1) >= 0:
        is_box = is_box & (boxes[..., 2:] - boxes[..., :2] > cfg.min_bbox_size).all(-1)
    # Groups are moved apart by mmcv's formula, because the offset rounds coordinates, and overlaps depend on that.
    largest = boxes.masked_fill(~is_box[..., None], -torch.inf).amax((1, 2))
    moved = boxes + (groups * (largest[:, None] + 1))[..., None]
    images, places = nms(moved, scores.where(is_box, NO_BOX), cfg.nms.iou_threshold, cfg.max_per_img).unbind(1)
    return images, places


def _crop(extractor: Any, maps: list[Tensor], rois: Tensor) -> Tensor:
    """Samples RoIs `(K, 5)` from maps, each from the level for its size: `(K, C, *output_size)`."""
    layers = extractor.roi_layers
    levels = extractor.map_roi_levels(rois, len(layers))
    crops = maps[0].new_zeros(len(rois), maps[0].shape[1], *layers[0].output_size)
    for level, (layer, x) in enumerate(zip(layers, maps, strict=False)):  # necks have more levels, for anchors only
        places = (levels == level).nonzero().flatten()
        cropped = roi_align(x, rois[places], list(layer.output_size), layer.spatial_scale, layer.sampling_ratio,
                            layer.aligned)
        crops = crops.index_put((places,), cropped)
    return crops


def _with_image(images: Tensor, boxes: Tensor) -> Tensor:
    """Joins image indices `(K,)` and boxes `(K, 4)` to RoIs `(K, 5)`: image, x1, y1, x2, y2."""
    return torch.cat([images[:, None].to(boxes), boxes], dim=1)
