"""ONNX of whole Faster R-CNN and Mask R-CNN of mmdet: `predict` for a batch, without branches on sizes."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.export import detector as one_stage
from cpvt_mm.export.detector import NO_BOX, Detections, Detector
from openmmlab_tools.errors import UserError


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


class TwoStage(Detector):
    """A Faster R-CNN or Mask R-CNN; the latter adds `masks` `(N, h, w)`, probabilities on a grid over the box."""

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
        detected = one_stage.detections(boxes.flatten(1, 2), scores.flatten(1), labels.flatten(1), self.test_cfg)
        return {**detected, 'masks': self._masks(maps, detected)} if head.with_mask else detected

    def _proposals(self, maps: list[Tensor], img_shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Returns boxes, `(B, N, 4)`, and which of them are proposals, `(B, N)`. Their number differs by image."""
        rpn = self.model.rpn_head
        boxes, scores, _, levels = one_stage.candidates(rpn, maps, img_shape)
        indices = one_stage.suppress(boxes, scores, levels, rpn.test_cfg)
        scores = torch.full_like(scores, NO_BOX).index_put(indices, scores[indices])
        scores, places = scores.topk(min(rpn.test_cfg.max_per_img, scores.shape[1]))
        return one_stage.pick(boxes, places), scores > NO_BOX

    def _masks(self, maps: list[Tensor], detected: Detections) -> Tensor:
        head, labels = self.model.roi_head, detected['labels']
        # Runtimes fail to reshape empty tensors, if there is no box. So one more box, of size 0, is appended; the last
        # line drops its mask.
        rois = F.pad(_with_image(detected['images'], detected['dets'][:, :4]), (0, 0, 0, 1))
        logits = head.mask_head(_crop(head.mask_roi_extractor, maps, rois))
        labels = torch.zeros_like(labels) if head.mask_head.class_agnostic else labels
        return logits[torch.arange(labels.shape[0], device=labels.device), labels].sigmoid()

    @torch.no_grad()
    def expected(self, batch: Tensor) -> list[list[Tensor]]:
        """Returns what mmdet finds in each image: `dets`, `labels` and `masks`, as far as there are."""
        if not self.model.with_mask:
            return super().expected(batch)
        head, logits = self.model.roi_head.mask_head, list[Tensor]()
        hook = head.register_forward_hook(lambda *call: logits.append(call[2]))  # before masks are pasted into images
        detected = super().expected(batch)
        hook.remove()
        labels = torch.cat([labels for _, labels in detected])
        masks = logits[0][torch.arange(len(labels)), labels * (not head.class_agnostic)].sigmoid() if logits else (
            batch.new_zeros(0, 1, 1))
        parts = masks.split([len(labels) for _, labels in detected])
        return [[*values, part] for values, part in zip(detected, parts, strict=True)]

    def translations(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        """Adds the translation of `roi_align`."""
        from onnxscript import INT64, opset18
        op: Any = opset18

        def to_roi_align(x: Any, rois: Any, size: list[int], scale: float, sampling_ratio: int, aligned: bool) -> Any:
            boxes, images = op.Slice(rois, [1], [5], [1]), op.Cast(op.Gather(rois, 0, axis=1), to=INT64.dtype)
            return op.RoiAlign(x, boxes, images, output_height=size[0], output_width=size[1], spatial_scale=scale,
                               sampling_ratio=sampling_ratio,
                               coordinate_transformation_mode='half_pixel' if aligned else 'output_half_pixel')

        return {**super().translations(), torch.ops.cpvt_mm.roi_align.default: to_roi_align}


def to_two_stage(model: Any) -> TwoStage:
    """Wraps a detector of mmdet; raises a UserError if a part is not mmdet's standard part."""
    for part, is_known in _parts(model):
        if not is_known:
            raise UserError(f'a {type(part).__name__} cannot be exported, only Faster R-CNN and Mask R-CNN with their '
                            'standard heads: export the backbone alone, with tools/deployment/export.py.')
    for cfg in (model.test_cfg.rpn, model.test_cfg.rcnn):
        one_stage.check_nms(cfg)
    return TwoStage(model, model.test_cfg.rcnn)


def _parts(model: Any) -> Iterator[tuple[nn.Module, bool]]:
    """Yields the parts of a detector that determine its predictions, and whether each is of a supported class."""
    from mmcv import ops
    from mmdet import models
    # Panoptic detectors override `predict`.
    yield model, getattr(type(model), 'predict', None) is models.TwoStageDetector.predict
    head, rpn = model.roi_head, getattr(model, 'rpn_head', model)
    yield head, type(head) is models.StandardRoIHead
    yield rpn, isinstance(rpn, models.RPNHead)
    yield head.bbox_head, isinstance(head.bbox_head, models.BBoxHead)
    if head.with_mask:
        yield head.mask_head, isinstance(head.mask_head, models.FCNMaskHead)
    for extractor in (head.bbox_roi_extractor, *([head.mask_roi_extractor] if head.with_mask else [])):
        yield extractor, isinstance(extractor, models.SingleRoIExtractor)
        yield from ((layer, isinstance(layer, ops.RoIAlign)) for layer in extractor.roi_layers)


def _crop(extractor: Any, maps: list[Tensor], rois: Tensor) -> Tensor:
    """Samples RoIs `(K, 5)` from maps, each from the level for its size: `(K, C, *output_size)`."""
    layers = extractor.roi_layers
    levels = extractor.map_roi_levels(rois, len(layers))
    crops = maps[0].new_zeros(rois.shape[0], maps[0].shape[1], *layers[0].output_size)
    for level, (layer, x) in enumerate(zip(layers, maps, strict=False)):  # necks have more levels, for anchors only
        places = (levels == level).nonzero().flatten()
        cropped = roi_align(x, rois[places], list(layer.output_size), layer.spatial_scale, layer.sampling_ratio,
                            layer.aligned)
        crops = crops.index_put((places,), cropped)
    return crops


def _with_image(images: Tensor, boxes: Tensor) -> Tensor:
    """Joins image indices `(K,)` and boxes `(K, 4)` to RoIs `(K, 5)`: image, x1, y1, x2, y2."""
    return torch.cat([images[:, None].to(boxes), boxes], dim=1)
