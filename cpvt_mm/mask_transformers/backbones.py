"""Plain mask transformers: queries join the patches in the last blocks of a ViT (EoMT), or in a small decoder (PMT).

The backbones here predict masks. The heads classify the queries; the rest is what Mask2Former does in mmdet and mmseg.
"""
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.structures import InstanceData
from torch import Tensor, nn

from cpvt_mm.encodings.base import PositionEncodings, StageSpec, build_position_encodings
from cpvt_mm.mask_losses import losses_at
from cpvt_mm.models.cpvt import CPVT
from cpvt_mm.models.layers import Block, BlockSpec
from cpvt_mm.models.neck import LayerNorm2d
from cpvt_mm.models.pvt_parts import LayerScale, prepend
from cpvt_mm.models.several_sizes import known_sizes
from cpvt_mm.registry import HOOKS, MODELS
from cpvt_mm.tokens.batch_info import Output
from cpvt_mm.tokens.coordinates import grid_size
from cpvt_mm.tokens.grid import Grid, Size, to_map
from cpvt_mm.tokens.packing import Layout, Packing
from cpvt_mm.tokens.tracing import has_size
from openmmlab_tools.libraries import require

require('mmdet', 'mmseg')

from mmdet import models, registry  # noqa: E402
from mmseg.models import Mask2FormerHead  # noqa: E402

Predicted = tuple[Tensor, Tensor]  # normed queries (B, Q, C), and the logits of their masks (B, Q, h, w)


class MaskPredictor(nn.Module):
    """Learnt queries, and their masks: products of queries after an MLP with upscaled patches (EoMT, section 3.2)."""

    def __init__(self, dims: int, patch_size: int, num_queries: int) -> None:
        super().__init__()
        doublings = max(1, patch_size.bit_length() - 3)  # to stride 4 if patches have 16 pixels
        self.scale = 2**doublings
        self.queries = nn.Parameter(torch.randn(1, num_queries, dims))
        self.embed = nn.Sequential(
            nn.Linear(dims, dims), nn.GELU(), nn.Linear(dims, dims), nn.GELU(), nn.Linear(dims, dims))
        self.upscale = nn.Sequential(*(nn.Sequential(
            nn.ConvTranspose2d(dims, dims, 2, stride=2), nn.GELU(),
            nn.Conv2d(dims, dims, 3, padding=1, groups=dims, bias=False), LayerNorm2d(dims)) for _ in range(doublings)))

    def forward(self, x: Tensor, layout: Layout) -> list[Predicted]:
        """Predicts for each group of images; queries are the last of the extra tokens."""
        predicted, number = [], self.queries.shape[1]
        for tokens, grid in zip(layout.split(x), layout.grids, strict=True):
            queries, cells = tokens[:, grid.extra - number:grid.extra], self.upscale(to_map(grid.cells(tokens), grid))
            predicted.append((queries, torch.einsum('bqc,bchw->bqhw', self.embed(queries), cells)))
        return predicted


class MaskedEncodings(PositionEncodings):
    """Position encodings of attention that sees what is True in masks `(n, 1, N, N)`, one for each group of images."""

    def __init__(self, encodings: PositionEncodings, masks: Sequence[Tensor]) -> None:
        super().__init__(list[Any](encodings))
        self.masks, self.act_in_attention = masks, True

    def attention(self, *args: Any) -> tuple[Tensor, Tensor, Tensor, list[Tensor | None] | None]:
        q, k, v, biases = super().attention(*args)
        return q, k, v, [mask if bias is None else bias.masked_fill(~mask, -math.inf)
                         for bias, mask in zip(biases or [None] * len(self.masks), self.masks, strict=True)]


def attention_mask(masks: Tensor, grid: Grid, prob: float) -> Tensor:
    """Returns which tokens see which, `(n, 1, N, N)`: a query sees the cells of its mask, or with `1 - prob` all."""
    number, total = masks.shape[1], grid.extra + grid.size
    shrunk = F.interpolate(masks.detach(), (grid.height, grid.width), mode='bilinear').flatten(2)
    seen = torch.ones(len(masks), 1, total, total, dtype=torch.bool, device=masks.device)
    seen[:, 0, grid.extra - number:grid.extra, grid.extra:] = (shrunk > 0) | (
        torch.rand(*shrunk.shape[:2], 1, device=masks.device) > prob)
    return seen


def extend(masks: Tensor, height: int, width: int) -> Tensor:
    """Crops masks to a height and width, or continues their last row and column there, without a gradient."""
    masks = masks[:, :, :height, :width]
    if has_size(masks, slice(2, None), (height, width)):
        return masks
    extended = F.pad(masks.detach(), (0, width - masks.shape[3], 0, height - masks.shape[2]), mode='replicate')
    extended[:, :, :masks.shape[2], :masks.shape[3]] = masks
    return extended


def in_batch(predicted: Sequence[Predicted], layout: Layout) -> Predicted:
    """Returns what is predicted for all images, in the order of the batch; masks get the size of the largest."""
    if not isinstance(layout, Packing):
        return predicted[0]
    height, width = (max(masks.shape[dim] for _, masks in predicted) for dim in (2, 3))
    queries, masks = zip(*((queries, extend(masks, height, width)) for queries, masks in predicted), strict=True)
    order = torch.tensor([image for group in layout.groups for image in group.images]).argsort().to(layout.device)
    return torch.cat(queries)[order], torch.cat(masks)[order]


@MODELS.register_module()
class PlainMaskTransformer(CPVT):
    """A ViT whose last blocks have queries beside the patches; each predicts a mask (EoMT, arXiv 2503.19108).

    `forward` returns pairs `Predicted`: one in eval mode, in training also one before each block with queries. There,
    `MaskAnnealingHook` masks attention. An `init_cfg` with weights of a ViT needs `allow_missing='decoder'`.

    Args:
        num_queries: Number of queries. Defaults to 100.
        num_query_blocks: Number of last blocks that have queries. Defaults to 4.
        backbone: Arguments of `CPVT`, except `fixed`: a ValueError refuses them, and what does not fit.
    """

    fixed: tuple[str, ...] = ('out_indices', 'out_type', 'drop_path_rate')

    def __init__(self, num_queries: int = 100, num_query_blocks: int = 4, **backbone: Any) -> None:
        for name in {*self.fixed} & {*backbone}:
            raise ValueError(f'{name} is {backbone[name]!r}, but a {type(self).__name__} has none: remove it.')
        super().__init__(**backbone)
        if 'out_indices' in self.fixed and num_query_blocks not in range(1, self.num_blocks):
            raise ValueError(f'num_query_blocks is {num_query_blocks!r}, but must be from 1 to {self.num_blocks - 1}.')
        self.decoder = MaskPredictor(self.out_channels[0], self.patch_size, num_queries)
        self.mask_probs = [0.] * num_query_blocks  # of masked attention in training

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Returns the layer of a parameter, and the number of layers, as the authors of EoMT count them.

        A layer is a block. That of the first block includes the patch embedding and tokens, that of the last one the
        norm, the queries and all else. With `layer_decay_rate=0.8`, the last of 12 blocks has the full learning rate,
        and the first one 0.8**11 times that.
        """
        layer, number = super().get_layer_depth(param_name, prefix)
        return min(max(layer - 1, 0), number - 3), number - 2

    def forward(self, x: Tensor, valid_sizes: Sequence[Size] | None = None, num_frames: int | None = None
                ) -> tuple[Output, ...]:
        """Predicts masks as the class says; arguments are those of the backbone.

        If sizes are known, cells beside an image continue those at its border, whatever the batch is padded to.
        """
        outs = super().forward(x, valid_sizes, num_frames)
        sizes, whole = known_sizes(x, valid_sizes) if self.padding else None, (x.shape[2], x.shape[3])
        if sizes is None:
            return self.fit_outputs(outs, whole, whole)
        return tuple((queries, self.continued(masks, sizes)) for queries, masks in outs)

    def continued(self, masks: Tensor, sizes: Sequence[Size]) -> Tensor:
        """Replaces cells of masks beside images of some heights and widths by the nearest cells of the images."""
        images = []
        for image, size in zip(masks.split(1), sizes, strict=True):
            rows, columns = self.cells_of(size)
            images.append(extend(image[:, :, :rows, :columns], masks.shape[2], masks.shape[3]))
        return torch.cat(images)

    def cells_of(self, size: Size) -> Size:
        """Returns rows and columns of the masks of an image with a height and width in pixels."""
        return grid_size((size[0] * self.decoder.scale, size[1] * self.decoder.scale), self.patch_size)

    def outputs(self, x: Tensor, grid: Layout) -> tuple[Output, ...]:
        first = self.num_blocks - len(self.mask_probs)
        (x, layout), = self.tokens_after([first - 1], x, grid)
        return self.predict(x, layout, self.blocks[first:], self.position_encoding, self.norm)

    def predict(self, x: Tensor, layout: Layout, blocks: Iterable[Any], encodings: PositionEncodings, norm: nn.Module
                ) -> tuple[Output, ...]:
        """Runs blocks with queries, after tokens of a layout; returns the outputs of `forward`."""
        outs: tuple[Output, ...] = ()
        queries = self.decoder.queries
        x, layout = prepend([queries], layout.extra + queries.shape[1], x, layout)
        for block, prob in zip(blocks, self.mask_probs, strict=True):
            acting = encodings
            if self.training:
                predicted = self.decoder(norm(x), layout)
                outs += in_batch(predicted, layout),
                acting = MaskedEncodings(encodings, [
                    attention_mask(masks, grid, prob) for (_, masks), grid in zip(predicted, layout.grids, strict=True)
                ]) if prob else encodings
            x = self.run_block(block, x, layout, acting)
        return *outs, in_batch(self.decoder(norm(x), layout), layout)

    def fit_outputs(self, outs: tuple[Output, ...], size: Size, wanted: Size) -> tuple[Output, ...]:
        return tuple((out[0], extend(out[1], *self.cells_of(wanted))) for out in outs)


@MODELS.register_module()
class FrozenMaskTransformer(PlainMaskTransformer):
    """A frozen ViT, and a decoder of `num_query_blocks` blocks that queries join (PMT, arXiv 2603.25398).

    The decoder is as wide as the ViT, with `mlp_ratio` times as many hidden channels, and rotary encodings. It gets the
    sum of the tokens after the blocks `out_indices`. Other arguments are those of `PlainMaskTransformer`.
    """

    fixed = ('out_type', 'drop_path_rate', 'frozen_stages')

    def __init__(self, num_queries: int = 100, num_query_blocks: int = 6, mlp_ratio: int = 4,
                 out_indices: Sequence[int] = (2, 5, 8, 11), **backbone: Any) -> None:
        super().__init__(num_queries, num_query_blocks, out_indices=out_indices, **backbone)
        first: Any = self.blocks[0]
        dims, heads, grid = self.out_channels[0], first.attn.num_heads, grid_size(self.img_size, self.patch_size)
        spec = BlockSpec(dims, heads, mlp_ratio, norm_eps=1e-5, make_scale=lambda: LayerScale(dims, 1.))
        self.decoder_norms = nn.ModuleList(nn.BatchNorm1d(dims) for _ in self.out_indices)
        self.decoder_mlps = nn.ModuleList(nn.Sequential(
            nn.Linear(dims, dims // 2), nn.GELU(), nn.Linear(dims // 2, dims)) for _ in self.out_indices)
        self.decoder_scales = nn.ModuleList(LayerScale(dims, 1.) for _ in self.out_indices)
        self.decoder_blocks = nn.ModuleList(Block(index, spec) for index in range(num_query_blocks))
        self.decoder_encoding = build_position_encodings(
            dict(type='RotaryPE', form='dinov3'), StageSpec(dims, heads, num_query_blocks, grid))
        self.decoder_norm = nn.LayerNorm(dims)
        self.frozen_stages = self.num_blocks
        self.freeze()

    def outputs(self, x: Tensor, grid: Layout) -> tuple[Output, ...]:
        kept, laterals = self.tokens_after(self.out_indices, x, grid), []
        for (x, _), norm, mlp, scale in zip(kept, self.decoder_norms, self.decoder_mlps, self.decoder_scales,
                                            strict=True):
            x = norm(self.norm(x).flatten(0, 1)).view_as(x)
            laterals.append(scale(x + mlp(x)))
        return self.predict(torch.stack(laterals).sum(0), kept[0][1], self.decoder_blocks, self.decoder_encoding,
                            self.decoder_norm)


@MODELS.register_module()
class PlainMaskHead(models.Mask2FormerHead):
    """Classifies the queries of a plain mask transformer of width `in_channels`, in mmdet's Mask2Former.

    The losses compare masks in images without their padding.
    """

    def __init__(self, in_channels: int, num_things_classes: int = 80, num_stuff_classes: int = 53,
                 train_cfg: dict[str, Any] | None = None, test_cfg: dict[str, Any] | None = None) -> None:
        super(models.AnchorFreeHead, self).__init__()  # as Mask2FormerHead does, whose constructor builds a decoder
        self.num_things_classes, self.num_stuff_classes = num_things_classes, num_stuff_classes
        self.num_classes, self.train_cfg, self.test_cfg = num_things_classes + num_stuff_classes, train_cfg, test_cfg
        if train_cfg:
            self.assigner = registry.TASK_UTILS.build(train_cfg['assigner'])
            for key in ('num_points', 'oversample_ratio', 'importance_sample_ratio'):
                setattr(self, key, train_cfg[key])
        self.cls_embed = nn.Linear(in_channels, self.num_classes + 1)
        self.class_weight = [1.] * self.num_classes + [0.1]
        build, entropy = registry.MODELS.build, 'mmdet.CrossEntropyLoss'
        self.loss_cls = build(dict(type=entropy, loss_weight=2., class_weight=self.class_weight))
        self.loss_mask = build(dict(type=entropy, use_sigmoid=True, loss_weight=5.))
        self.loss_dice = build(dict(type='mmdet.DiceLoss', naive_dice=True, eps=1., loss_weight=5.))

    def init_weights(self) -> None:
        """Leaves the weights as torch has set them."""

    def forward(self, x: Sequence[Predicted], batch_data_samples: object) -> tuple[list[Tensor], list[Tensor]]:
        """Returns for each of `x` the logits of classes, the last one of no object, and those of masks."""
        self.num_queries = x[0][0].shape[1]
        return [self.cls_embed(queries) for queries, _ in x], [masks for _, masks in x]

    def loss_by_feat(self, all_cls_scores: Sequence[Tensor], all_mask_preds: Sequence[Tensor],
                     batch_gt_instances: list[InstanceData], batch_img_metas: list[dict[str, Any]]
                     ) -> dict[str, Tensor]:
        """Returns the losses of each layer, as Mask2Former names them; the last layer has the short names."""
        counted = [self.counted_pixels(one.masks, meta)
                   for one, meta in zip(batch_gt_instances, batch_img_metas, strict=True)]
        losses, last = dict[str, Tensor](), len(all_cls_scores) - 1
        for layer, (scores, masks) in enumerate(zip(all_cls_scores, all_mask_preds, strict=True)):
            prefix = '' if layer == last else f'd{layer}.'
            each = losses_at(counted, self, scores, masks, batch_gt_instances)
            losses.update(zip((f'{prefix}loss_{name}' for name in ('cls', 'mask', 'dice')), each, strict=True))
        return losses

    def counted_pixels(self, masks: Tensor, meta: dict[str, Any]) -> Tensor:
        """Returns at which pixels losses compare masks `(N, H, W)` of an image, `(H, W)`: all but its padding."""
        height, width = meta['img_shape'][:2]
        counted = masks.new_zeros(masks.shape[1:], dtype=torch.bool)
        counted[:height, :width] = True
        return counted


@MODELS.register_module()
class PlainMaskSegHead(PlainMaskHead, Mask2FormerHead):
    """Classifies the queries of a plain mask transformer of width `in_channels`, in mmseg.

    The losses compare masks at labelled pixels only. In mmseg's heads of mask queries and in the authors' code, an
    unlabelled pixel counts as background of every mask.
    """

    def __init__(self, in_channels: int, num_classes: int, ignore_index: int = 255,
                 train_cfg: dict[str, Any] | None = None) -> None:
        super().__init__(in_channels, num_classes, 0, train_cfg)
        self.align_corners, self.out_channels, self.ignore_index = False, num_classes, ignore_index

    def counted_pixels(self, masks: Tensor, meta: dict[str, Any]) -> Tensor:
        """Returns which pixels have a label, `(H, W)`: each is in a mask."""
        return masks.any(0)

    def predict(self, x: Sequence[Predicted], batch_img_metas: list[dict[str, Any]], test_cfg: dict[str, Any]
                ) -> Tensor:
        """Returns the scores of classes; in windows (mode 'slide') of a window, whose size mmseg puts into `img_shape`.
        """
        hidden = ('pad_shape',) if test_cfg.get('mode') == 'slide' else ()  # that of the whole image
        metas = [{key: value for key, value in meta.items() if key not in hidden} for meta in batch_img_metas]
        return super().predict(x, metas, test_cfg)


@HOOKS.register_module()
class MaskAnnealingHook(Hook):
    """Turns masked attention on, and from a sixth of training on off again, block by block (EoMT, section 3.3)."""

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: object = None) -> None:
        probs = getattr(runner.model, 'module', runner.model).backbone.mask_probs
        for index in range(len(probs)):
            end = (2 + 3 * index / max(len(probs) - 1, 1)) / 6  # as the authors' configs have it
            probs[index] = min(max(6 * (end - runner.iter / runner.max_iters), 0.), 1.)**0.9
