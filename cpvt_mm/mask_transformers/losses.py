"""Losses of mask queries that skip padding, and pixels without a label, which may belong to any mask, or to none."""
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from mmengine.structures import InstanceData
from torch import Tensor

from openmmlab_tools.libraries import require

require('mmdet')

from mmcv.ops import point_sample  # noqa: E402
from mmdet.models import Mask2FormerHead  # noqa: E402
from mmdet.utils import reduce_mean  # noqa: E402


class Matched(NamedTuple):
    """The queries of an image that are matched with its objects, or with classes of its label map."""
    queries: Tensor  # their numbers, (N,)
    labels: Tensor  # (N,)
    logits: Tensor  # at random points, (N, P)
    targets: Tensor  # at these points, (N, P), from 0 to 1


def losses_at(counted: Sequence[Tensor], head: Mask2FormerHead, scores: Tensor, logits: Tensor,
              instances: Sequence[InstanceData]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns Mask2Former's losses of classes, masks and dice for one layer. Random points are drawn at some pixels
    only.

    Cells that contain no such pixel have no gradient, not even from a point in a neighbouring cell.

    Args:
        counted: The pixels of each image at which points may be drawn, `(H, W)` in bool; at least one if the image has
            objects.
        head: The head with the losses, the assigner, the numbers of points, and the weights of classes.
        scores: Logits of classes, `(B, Q, classes + 1)`. The last class means no object.
        logits: Logits of masks, `(B, Q, h, w)`.
        instances: For each image `labels`, `(N,)`, and `masks` with values 0 and 1, `(N, H, W)`.
    """
    matches = [_match(head, *image) for image in zip(counted, scores, logits, instances, strict=True)]
    labels = torch.full(scores.shape[:2], head.num_classes, device=scores.device)
    for image, matched in enumerate(matches):
        labels[image, matched.queries] = matched.labels
    weights = scores.new_tensor(head.class_weight)
    loss_cls = head.loss_cls(scores.flatten(0, 1), labels.flatten(), avg_factor=weights[labels].sum())
    at_points, targets = (torch.cat(parts) for parts in list(zip(*matches, strict=True))[2:])
    number = reduce_mean(scores.new_tensor(len(targets))).clamp(min=1)
    loss_mask = head.loss_mask(at_points.flatten(), targets.flatten(), avg_factor=number * head.num_points)
    return loss_cls, loss_mask, head.loss_dice(at_points, targets, avg_factor=number)


def _match(head: Mask2FormerHead, is_counted: Tensor, scores: Tensor, logits: Tensor, instances: InstanceData
           ) -> Matched:
    """Matches queries of one image with its masks; draws points at random, most of them where logits are near 0."""
    if not len(instances):
        empty = logits.flatten(1)[:0, :1].expand(-1, head.num_points)
        return Matched(instances.labels[:0], instances.labels[:0], empty, empty)
    masks, counted = instances.masks.float(), is_counted[None].float()
    logits = torch.where(F.adaptive_max_pool2d(counted, logits.shape[1:]) > 0, logits, logits.detach())
    with torch.no_grad():
        points = _draw(is_counted, 1, head.num_points)
        result = head.assigner.assign(
            InstanceData(scores=scores, masks=_at(logits, points.expand(len(logits), -1, -1))),
            InstanceData(labels=instances.labels, masks=_at(masks, points.expand(len(masks), -1, -1))))
        queries = (result.gt_inds > 0).nonzero().flatten()
        chosen = result.gt_inds[queries] - 1
        unsure = int(head.num_points * head.importance_sample_ratio)
        points = _draw(is_counted, len(queries), int(head.num_points * head.oversample_ratio))
        order = _at(logits[queries], points).abs().topk(unsure, largest=False).indices
        points = torch.cat([points.gather(1, order[..., None].expand(-1, -1, 2)),
                            _draw(is_counted, len(queries), head.num_points - unsure)], 1)
        # A point between four pixels averages those that count.
        targets = _at(masks[chosen] * counted, points) / _at(counted.expand(len(queries), -1, -1), points)
    return Matched(queries, instances.labels[chosen], _at(logits[queries], points), targets)


def _draw(is_counted: Tensor, masks: int, number: int) -> Tensor:
    """Returns random points in pixels that count, for some masks, `(masks, number, 2)`: x and y from 0 to 1."""
    pixels = is_counted.nonzero()
    chosen = pixels[torch.randint(len(pixels), (masks, number), device=pixels.device)]
    return ((chosen + torch.rand(chosen.shape, device=pixels.device)) / pixels.new_tensor(is_counted.shape)).flip(2)


def _at(maps: Tensor, points: Tensor) -> Tensor:
    """Samples maps `(N, H, W)` at points `(N, P, 2)`; returns `(N, P)`."""
    return point_sample(maps[:, None], points)[:, 0]
