"""Losses of mask queries that skip unlabelled pixels: such a pixel may belong to any mask, or to none."""
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from mmengine.structures import InstanceData
from torch import Tensor

from openmmlab_runs.libraries import require

require('mmdet')

from mmcv.ops import point_sample  # noqa: E402
from mmdet.models import Mask2FormerHead  # noqa: E402
from mmdet.utils import reduce_mean  # noqa: E402


class Matched(NamedTuple):
    """The queries of an image that are matched with a class of its label map."""
    queries: Tensor  # their numbers, (N,)
    labels: Tensor  # (N,)
    logits: Tensor  # at random points, (N, P)
    targets: Tensor  # at these points, (N, P), from 0 to 1


def labelled_losses(head: Mask2FormerHead, scores: Tensor, logits: Tensor, instances: Sequence[InstanceData],
                    metas: Sequence[dict[str, Any]]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns Mask2Former's losses of classes, masks and dice for one layer, with points at labelled pixels only.

    A pixel is labelled if it belongs to a mask of its image. Logits of cells without a labelled pixel get no gradient,
    not even from a labelled pixel beside them.

    Args:
        head: Has the losses, the assigner, the numbers of points, and the weights of classes.
        scores: Logits of classes, the last one of no object, `(B, Q, classes + 1)`.
        logits: Logits of masks, `(B, Q, h, w)`.
        instances: For each image `labels`, `(N,)`, and `masks` of 0 and 1, `(N, H, W)`.
        metas: What is known of each image, for the assigner.
    """
    each = [_match(head, *one) for one in zip(scores, logits, instances, metas, strict=True)]
    labels = torch.full(scores.shape[:2], head.num_classes, device=scores.device)
    for image, matched in enumerate(each):
        labels[image, matched.queries] = matched.labels
    weights = scores.new_tensor(head.class_weight)
    loss_cls = head.loss_cls(scores.flatten(0, 1), labels.flatten(), avg_factor=weights[labels].sum())
    at_points, targets = (torch.cat(parts) for parts in list(zip(*each, strict=True))[2:])
    number = reduce_mean(scores.new_tensor(len(targets))).clamp(min=1)
    loss_mask = head.loss_mask(at_points.flatten(), targets.flatten(), avg_factor=number * head.num_points)
    return loss_cls, loss_mask, head.loss_dice(at_points, targets, avg_factor=number)


def _match(head: Mask2FormerHead, scores: Tensor, logits: Tensor, instances: InstanceData, meta: dict[str, Any]
           ) -> Matched:
    """Matches queries of one image with its masks; draws points at random, most of them where logits are near 0."""
    if not len(instances):
        empty = logits.flatten(1)[:0, :1].expand(-1, head.num_points)
        return Matched(instances.labels[:0], instances.labels[:0], empty, empty)
    masks = instances.masks.float()
    labelled = masks.amax(0, keepdim=True)
    cells = F.adaptive_max_pool2d(labelled, logits.shape[1:]) > 0
    logits = torch.where(cells, logits, logits.detach())
    pixels = labelled[0].nonzero()
    with torch.no_grad():
        points = _draw(pixels, labelled, 1, head.num_points)
        result = head.assigner.assign(
            InstanceData(scores=scores, masks=_at(logits, points.expand(len(logits), -1, -1))),
            InstanceData(labels=instances.labels, masks=_at(masks, points.expand(len(masks), -1, -1))), meta)
        queries = (result.gt_inds > 0).nonzero().flatten()
        chosen = result.gt_inds[queries] - 1
        unsure = int(head.num_points * head.importance_sample_ratio)
        points = _draw(pixels, labelled, len(queries), int(head.num_points * head.oversample_ratio))
        order = _at(logits[queries], points).abs().topk(unsure, largest=False).indices
        points = torch.cat([points.gather(1, order[..., None].expand(-1, -1, 2)),
                            _draw(pixels, labelled, len(queries), head.num_points - unsure)], 1)
        # A point between four pixels averages those with a label.
        targets = _at(masks[chosen], points) / _at(labelled.expand(len(queries), -1, -1), points)
    return Matched(queries, instances.labels[chosen], _at(logits[queries], points), targets)


def _draw(pixels: Tensor, labelled: Tensor, masks: int, number: int) -> Tensor:
    """Returns random points in labelled pixels for some masks, `(masks, number, 2)`: x and y from 0 to 1."""
    chosen = pixels[torch.randint(len(pixels), (masks, number), device=pixels.device)]
    size = labelled.new_tensor(labelled.shape[1:])
    return ((chosen + torch.rand_like(chosen, dtype=labelled.dtype)) / size).flip(2)


def _at(maps: Tensor, points: Tensor) -> Tensor:
    """Returns the values of maps, `(N, H, W)`, at points, `(N, P, 2)`."""
    return point_sample(maps[:, None], points)[:, 0]
