"""RetinaNet of mmdet: `predict` for a batch, without branches on sizes; its parts also serve other detectors."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import ConfigDict
from torch import Tensor, nn

from openmmlab_tools.errors import UserError

NO_BOX = -1.  # score of padding entries, which are not boxes


@torch.library.custom_op('cpvt_mm::nms', mutates_args=())
def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, max_per_img: int) -> Tensor:
    """Selects boxes `(B, N, 4)` of x1, y1, x2, y2 by non-maximum suppression, at most `max_per_img` of each image.

    Scores are `(B, N)`; NO_BOX marks boxes to ignore. A box is removed if its IoU with a remaining box of a higher
    score is above `iou_threshold`. Returns image and box indices `(K, 2)`, int64, by image, then by decreasing score.
    """
    from mmcv import ops
    indices = []
    for image in range(len(boxes)):
        places = (scores[image] > NO_BOX).nonzero().flatten()
        _, order = ops.nms(boxes[image, places], scores[image, places], iou_threshold, max_num=max_per_img)
        indices.append(torch.stack([torch.full_like(order, image), places[order]], dim=1))
    return torch.cat(indices)


@nms.register_fake
def _nms_shape(boxes: Tensor, scores: Tensor, iou_threshold: float, max_per_img: int) -> Tensor:
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), 2, dtype=torch.int64)


Detections = dict[str, Tensor]


class Detector(nn.Module):
    """An exportable wrapper for an mmdet RetinaNet.

    It accepts images `(B, 3, H, W)`, and returns one dict for the whole batch. `dets` `(N, 5)` contains x1, y1, x2 and
    y2 in pixels, and the score. `labels` `(N,)` contains the classes. `images` `(N,)` contains the index of the image
    in the batch. A subclass may return more values for each box. `test_cfg` configures the last step of the model.
    """

    def __init__(self, model: Any, test_cfg: ConfigDict) -> None:
        super().__init__()
        self.model = model
        self.test_cfg = test_cfg

    def forward(self, image: Tensor) -> Detections:
        maps = self.model.extract_feat(image)
        boxes, scores, labels, _ = candidates(self.model.bbox_head, maps, image.shape[2:])
        return detections(boxes, scores, labels, self.test_cfg)

    @torch.no_grad()
    def expected(self, batch: Tensor) -> list[list[Tensor]]:
        """Returns what mmdet finds in each image: `dets`, `labels`, and the values of a subclass."""
        from mmdet.structures import DetDataSample
        size = tuple(batch.shape[2:])
        meta = dict(img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size, scale_factor=(1., 1.))
        samples = self.model.predict(batch, [DetDataSample(metainfo=meta) for _ in batch], rescale=False)
        instances = [sample.pred_instances for sample in samples]
        return [[torch.cat([x.bboxes, x.scores[:, None]], 1), x.labels] for x in instances]

    def translations(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        """Returns a function for each operator that translates it to ONNX, for torch's `custom_translation_table`."""
        from onnxscript import opset18
        op: Any = opset18  # its annotations allow only tensors, but it accepts numbers as constants

        def to_nms(boxes: Any, scores: Any, iou_threshold: float, max_per_img: int) -> Any:
            # Columns: image, class, box. All boxes have one class here.
            indices = op.NonMaxSuppression(boxes, op.Unsqueeze(scores, [1]), [max_per_img], [iou_threshold], [NO_BOX])
            return op.Gather(indices, [0, 2], axis=1)

        return {torch.ops.cpvt_mm.nms.default: to_nms}


def detections(boxes: Tensor, scores: Tensor, labels: Tensor, cfg: ConfigDict) -> Detections:
    indices = suppress(boxes, scores, labels, cfg)
    return dict(dets=torch.cat([boxes, scores[..., None]], dim=-1)[indices], labels=labels[indices], images=indices[0])


def to_detector(model: Any) -> Detector:
    """Wraps a RetinaNet of mmdet; raises a UserError if it is another detector."""
    from mmdet import models
    head = getattr(model, 'bbox_head', model)
    if not isinstance(head, models.RetinaHead):
        raise UserError(f'a {type(head).__name__} cannot be exported, only a RetinaNet (in a clone, python -m '
                        'projects.onnx_two_stage exports Faster and Mask R-CNN): export the backbone alone, with '
                        '--part backbone.')
    check_nms(model.test_cfg)
    return Detector(model, model.test_cfg)


def check_nms(cfg: ConfigDict) -> None:
    """Raises a UserError if boxes are not suppressed by plain NMS."""
    if cfg.nms.get('type', 'nms') != 'nms' or 'iou_threshold' not in cfg.nms:
        raise UserError(f'a detector with nms={dict(cfg.nms)} in its test_cfg cannot be exported: set nms to '
                        "dict(type='nms', iou_threshold=0.5).")


def candidates(head: Any, maps: list[Tensor], img_shape: torch.Size) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the `nms_pre` best boxes `(B, N, 4)` of each map, and scores (or NO_BOX), labels and levels `(B, N)`."""
    class_maps, delta_maps = head(maps)
    anchors = head.prior_generator.grid_priors([x.shape[2:] for x in class_maps], device=maps[0].device)
    best = [_best(head, *level, img_shape) for level in zip(class_maps, delta_maps, anchors, strict=True)]
    boxes, scores, labels = (torch.cat(x, dim=1) for x in zip(*best, strict=True))
    levels = torch.arange(len(best), device=boxes.device).repeat_interleave(head.test_cfg.nms_pre)
    return boxes, scores, labels, levels.expand_as(labels)


def _best(head: Any, logits: Tensor, deltas: Tensor, anchors: Tensor, img_shape: torch.Size,
          ) -> tuple[Tensor, Tensor, Tensor]:
    logits = logits.permute(0, 2, 3, 1).reshape(logits.shape[0], anchors.shape[0], head.cls_out_channels)
    scores = logits.sigmoid() if head.use_sigmoid_cls else logits.softmax(-1)[..., :-1]
    count, classes = head.test_cfg.nms_pre, scores.shape[-1]
    scores, places = F.pad(scores.flatten(1), (0, count), value=NO_BOX).topk(count)
    places = places.where(scores > NO_BOX, 0)
    cells, labels = places // classes, places % classes
    deltas = pick(deltas.permute(0, 2, 3, 1).reshape(deltas.shape[0], anchors.shape[0], 4), cells)
    boxes = head.bbox_coder.decode(anchors[cells].flatten(0, 1), deltas.flatten(0, 1), max_shape=img_shape)
    return boxes.unflatten(0, cells.shape), scores, labels


def pick(x: Tensor, places: Tensor) -> Tensor:
    """Gathers rows from each image: returns `(B, K, C)`, the rows of `x`, `(B, N, C)`, at the indices `places`, `(B,
    K)`.
    """
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))


def suppress(boxes: Tensor, scores: Tensor, groups: Tensor, cfg: ConfigDict) -> tuple[Tensor, Tensor]:
    """Returns image and box index, `(K,)`, of boxes left by score, size, and `nms` within groups, numbered from 0."""
    is_box = scores > cfg.get('score_thr', NO_BOX)
    if cfg.get('min_bbox_size', -1) >= 0:
        is_box = is_box & (boxes[..., 2:] - boxes[..., :2] > cfg.min_bbox_size).all(-1)
    # Groups are moved apart by mmcv's formula, because the offset rounds coordinates, and overlaps depend on that.
    largest = boxes.masked_fill(~is_box[..., None], -torch.inf).amax((1, 2))
    moved = boxes + (groups * (largest[:, None] + 1))[..., None]
    images, places = nms(moved, scores.where(is_box, NO_BOX), cfg.nms.iou_threshold, cfg.max_per_img).unbind(1)
    return images, places
