"""Hooks for detectors that choose queries among the locations of an image: two-stage Deformable DETR, DINO, DDQ.

`average_losses` is for the losses of mask queries: those of MaskFormer and Mask2Former.
"""
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmdet.models import DDQDETR, DeformableDETR, MaskFormerHead
from mmdet.structures import DetDataSample
from mmdet.utils import reduce_mean
from mmengine.logging import print_log
from mmengine.structures import InstanceData
from torch import Tensor, nn

from cpvt_mm.batch_layers import Arguments, Batch


class Queries:
    """The queries of a batch. An image with fewer locations than `num_queries` has a query for each location."""

    padding: Tensor | None = None  # `(B, N)` in bool: which locations are padding; None without padding
    missing: Tensor | None = None  # `(B, Q)` in bool: which queries an image has too few locations for; None if none

    def __init__(self, batch: Batch, detector: DeformableDETR) -> None:
        self.batch, self.detector, self.total = batch, detector, detector.num_queries
        encoder, decoder, head = detector.encoder, detector.decoder, detector.bbox_head
        encoder.register_forward_pre_hook(self.choose, with_kwargs=True)
        head.cls_branches[decoder.num_layers].register_forward_hook(self.leave_out_padding)
        if isinstance(detector, DDQDETR):  # it completes queries by itself
            decoder.register_forward_pre_hook(self.complete, with_kwargs=True)
            return
        decoder.register_forward_pre_hook(self.cut, with_kwargs=True)
        for layer in decoder.layers:
            layer.self_attn.register_forward_pre_hook(self.mask, with_kwargs=True)
        head.register_forward_hook(self.score)
        detector.register_forward_hook(self.remove)

    def choose(self, encoder: nn.Module, args: object, kwargs: dict[str, Any]) -> None:
        """Takes the locations of the batch, `query` in `(B, N, C)`, and sets how many of them become queries."""
        query, batch = kwargs['query'], self.batch
        counts, self.padding = [query.shape[1]] * len(query), None
        if batch.sizes:
            shapes = [(h, w) for h, w in kwargs['spatial_shapes'].tolist()]
            self.padding = torch.cat([batch.padding(shape, query.device).flatten(1) for shape in shapes], 1)
            counts = [sum(h * w for h, w in cells) for cells in zip(*map(batch.cells, shapes), strict=True)]
        if isinstance(self.detector, DDQDETR):
            return
        self.detector.num_queries = number = min(self.total, query.shape[1])
        self.missing = None
        if min(counts) < self.total:
            numbers = torch.arange(number, device=query.device)
            self.missing = numbers >= torch.tensor(counts, device=query.device)[:, None]
            # mmengine logs the same warning once.
            print_log(f'images with fewer locations than num_queries={self.total} have a query for each location, and '
                      'no more boxes.', 'current', logging.WARNING)

    def leave_out_padding(self, layer: nn.Module, args: object, scores: Tensor) -> Tensor:
        """Gives locations `(B, N, classes)` in the padding a score of 0, so that others come first."""
        return scores if self.padding is None else scores.masked_fill(
            self.padding[..., None], torch.finfo(scores.dtype).min)

    def complete(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Replaces a query `(B, Q, C)` from no place of the image by one of those with which DDQ completes the number.

        All such places have one box and one score, so that rounding decides which of them mmdet takes.
        """
        if not decoder.training:
            nowhere = (kwargs['reference_points'] == 1).all(2, keepdim=True)
            kwargs['query'] = kwargs['query'].masked_fill(nowhere, 0)
            kwargs['reference_points'] = kwargs['reference_points'].masked_fill(nowhere, 0.5)
        return args, kwargs

    def cut(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Cuts queries `(B, Q, C)`, and their mask, to the number of boxes."""
        number = kwargs['reference_points'].shape[1]
        kwargs['query'] = kwargs['query'][:, :number]
        if kwargs.get('self_attn_mask') is not None:
            kwargs['self_attn_mask'] = kwargs['self_attn_mask'][:number, :number]
        return args, kwargs

    def missing_of(self, number: int) -> Tensor:
        """Returns which of `number` queries are missing, `(B, number)` in bool; the denoising ones come first."""
        assert self.missing is not None
        return F.pad(self.missing, (number - self.missing.shape[1], 0))

    def mask(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Masks missing queries."""
        if self.missing is not None:
            kwargs['key_padding_mask'] = self.missing_of(kwargs['query'].shape[1])
        return args, kwargs

    def score(self, head: nn.Module, args: object, outs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Gives missing queries a score of 0, and completes their number: `(L, B, Q, classes)` and `(L, B, Q, 4)`."""
        scores, boxes = outs
        if self.missing is None:
            return outs
        lowest, more = torch.finfo(scores.dtype).min, max(self.total - scores.shape[2], 0)
        scores = scores.masked_fill(self.missing_of(scores.shape[2])[..., None], lowest)
        if head.training:
            return scores, boxes
        return F.pad(scores, (0, 0, 0, more), value=lowest), F.pad(boxes, (0, 0, 0, more))

    def remove(self, detector: nn.Module, args: object, outs: object) -> None:
        """Removes the boxes of missing queries from predictions."""
        if self.missing is not None and isinstance(outs, list):
            for sample in outs:
                if isinstance(sample, DetDataSample):
                    sample.pred_instances = sample.pred_instances[sample.pred_instances.scores > 0]


def average_losses(batch: Batch, head: MaskFormerHead, loss: Callable[..., dict[str, Tensor]],
                   scores: Sequence[Tensor], masks: Sequence[Tensor], instances: list[InstanceData],
                   metas: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Averages the losses of each image without its padding, in the way in which a head averages those of a batch.

    Unless `batch` is for training, these are the losses of the head. With several processes, each needs the same number
    of images, since the head reduces over them for each image. At most as many objects count as there are queries.

    `loss` is the head's `loss_by_feat`, which takes the arguments that follow: for each layer of the decoder `scores`,
    `(B, Q, classes + 1)`, and logits of `masks`, `(B, Q, H, W)`; objects of each image, with masks of the batch's size.
    """
    if not batch.training:
        return loss(scores, masks, instances, metas)
    each, shape = [], (masks[0].shape[2], masks[0].shape[3])
    sizes = zip(batch.sizes or [batch.whole] * len(metas), batch.cells(shape) or [shape] * len(metas), strict=True)
    for i, ((h, w), (rows, columns)) in enumerate(sizes):
        objects = InstanceData(labels=instances[i].labels, masks=instances[i].masks[:, :h, :w])
        each.append(loss([x[i:i + 1] for x in scores], [x[i:i + 1, :, :rows, :columns] for x in masks], [objects],
                         metas[i:i + 1]))
    weights, total = scores[0].new_tensor(head.class_weight), head.num_queries
    number = scores[0].new_tensor([min(len(one), total) for one in instances])
    mean = torch.stack([weights[one.labels].sum() / max(len(one), 1) for one in instances])
    of_classes, of_masks = mean * number + weights[-1] * (total - number), reduce_mean(number)
    shares = dict.fromkeys(('loss_mask', 'loss_dice'), of_masks.clamp(min=1) / of_masks.sum().clamp(min=1))
    shares['loss_cls'] = of_classes / of_classes.sum()
    return {name: sum((share * one[name] for share, one in zip(shares[name.rpartition('.')[2]], each, strict=True)),
                      scores[0].new_zeros(())) for name in each[0]}
