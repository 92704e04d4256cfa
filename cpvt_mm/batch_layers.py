"""Hooks for layers of necks and heads, with which the padding beside an image changes nothing.

An image has the top left of each map. In the padding beside it, convolutions see zeros, interpolation and RoIAlign see
the nearest cell of the image, as they do alone, attention sees nothing, and no anchor counts.
"""
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cpvt_mm.models.neck import CeilMaxPool2d
from cpvt_mm.tokens.batch_info import told_about
from cpvt_mm.tokens.coordinates import grid_size, round_up
from cpvt_mm.tokens.grid import Size
from openmmlab_runs.errors import UserError
from openmmlab_runs.libraries import require

require('mmdet', 'mmseg')

from mmdet.models import dense_heads  # noqa: E402
from mmdet.models.layers import SinePositionalEncoding, transformer  # noqa: E402
from mmdet.models.layers.transformer.mask2former_layers import Mask2FormerTransformerDecoderLayer  # noqa: E402
from mmseg.models.decode_heads.psp_head import PPM  # noqa: E402

DENSE = (dense_heads.RPNHead, dense_heads.RetinaHead, dense_heads.FCOSHead, dense_heads.ATSSHead,
         dense_heads.RTMDetHead, dense_heads.RTMDetSepBNHead)
DEFORMABLE = (transformer.DeformableDetrTransformerEncoder, transformer.DeformableDetrTransformerDecoder)
# Positional and keyword arguments of a layer, as a hook gets and returns them.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Batch:
    """The padding of a batch, and hooks for layers. They do nothing without padding, nor in training by default."""

    sizes: tuple[Size, ...] = ()  # of each image, in multiples of 32 pixels; none without padding
    whole: Size = (32, 32)  # of the batch
    masks: dict[Size, Tensor]  # `(B, H, W)` in bool: which cells of maps of a size are padding

    def __init__(self, training: bool = False) -> None:
        self.training = training

    def begin(self, backbone: nn.Module, args: tuple[Tensor]) -> None:
        """Takes the sizes of the images `(B, C, H, W)` that the backbone gets."""
        # Without sizes, the backbone raises an error.
        told = told_about(args[0]) if self.training or not backbone.training else None
        self.whole, self.masks = (args[0].shape[2], args[0].shape[3]), {}
        if told and any(side % 32 for side in self.whole):
            raise UserError(f'the batch has {self.whole} pixels, but must have multiples of 32: set '
                            'model.data_preprocessor.pad_size_divisor=32, in mmseg test_cfg.size_divisor=32 there.')
        sizes = tuple((round_up(h, 32), round_up(w, 32)) for h, w in told.sizes) if told else ()
        self.sizes = () if {*sizes} <= {self.whole} else sizes

    def follow(self, part: nn.Module) -> None:
        """Registers hooks on the layers of a neck, a head or a transformer; a PPM runs as a whole."""
        dense = isinstance(part, DENSE)
        if dense:
            part.register_forward_hook(self.leave_out_anchors)
        for layer in (layer for name, layer in part.named_modules() if 'psp_modules.' not in name):
            if isinstance(layer, PPM | nn.GroupNorm | CeilMaxPool2d):
                layer.register_forward_hook(self.run_each)
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_pre_hook(self.fill)
            if isinstance(layer, nn.Conv2d | nn.GroupNorm) and not dense:
                layer.register_forward_hook(self.continue_images)
            if isinstance(layer, SinePositionalEncoding):
                layer.register_forward_pre_hook(self.mask)
            if isinstance(layer, DEFORMABLE):
                layer.register_forward_pre_hook(self.place_references, with_kwargs=True)
            if isinstance(layer, transformer.Mask2FormerTransformerEncoder):
                layer.register_forward_hook(self.continue_levels, with_kwargs=True)
            if isinstance(layer, Mask2FormerTransformerDecoderLayer):
                layer.register_forward_pre_hook(self.mask_attention, with_kwargs=True)
            if isinstance(layer, transformer.DinoTransformerDecoder | transformer.DDQTransformerDecoder):
                for each in layer.layers:
                    each.register_forward_pre_hook(partial(self.place_queries, layer.ref_point_head), with_kwargs=True)

    def cells(self, shape: Size) -> list[Size]:
        """Returns rows and columns of each image in a map of this height and width; its stride is a power of two."""
        stride = max(1 << ((a - 1) // b).bit_length() for a, b in zip(self.whole, shape, strict=True))
        return [grid_size(size, stride) for size in self.sizes]

    def padding(self, shape: Size, device: torch.device) -> Tensor:
        """Returns which cells `(B, H, W)` of maps of this height and width are padding, in bool."""
        if shape not in self.masks:
            mask = self.masks[shape] = torch.ones(len(self.sizes), *shape, dtype=torch.bool, device=device)
            for i, (rows, columns) in enumerate(self.cells(shape)):
                mask[i, :rows, :columns] = False
        return self.masks[shape]

    def fill(self, layer: nn.Module, args: tuple[Tensor], value: float = 0.) -> Tensor:
        """Returns a map `(B, C, H, W)` that a layer gets, with a value in the padding."""
        x, = args
        return x.masked_fill(self.padding((*x.shape[2:],), x.device)[:, None], value) if self.sizes else x

    def continue_images(self, layer: nn.Module, args: object, x: Tensor) -> None:
        """Copies the last row and column of each image into the padding."""
        for i, (rows, columns) in enumerate(self.cells((*x.shape[2:],))):
            x[i, :, rows:] = x[i, :, rows - 1:rows]
            x[i, :, :, columns:] = x[i, :, :, columns - 1:columns]

    def run_each(self, layer: nn.Module, args: tuple[Tensor], outs: Tensor | list[Tensor]) -> None:
        """Computes again, from each image alone, what a layer computes from a whole map: means, or a grid's cells."""
        outs = [outs] if isinstance(outs, Tensor) else outs
        for i, (rows, columns) in enumerate(self.cells((*args[0].shape[2:],))):
            for out, part in zip(outs, layer.forward(args[0][i:i + 1, :, :rows, :columns]), strict=True):
                out[i, :, :part.shape[-2], :part.shape[-1]] = part

    def leave_out_anchors(self, head: nn.Module, args: object, outs: tuple[list[Tensor], ...]
                          ) -> tuple[list[Tensor], ...]:
        """Gives anchors in the padding a score of 0, and those of an RPN an empty box, which are removed."""
        limits = torch.finfo(outs[0][0].dtype)  # finite, so that losses in eval mode are
        scores = [self.fill(head, (x,), limits.min) for x in outs[0]]
        if not isinstance(head, dense_heads.RPNHead):
            return scores, *outs[1:]
        return scores, [self.fill(head, (x,), limits.max) for x in outs[1]]

    def mask(self, layer: nn.Module, args: tuple[Tensor]) -> None:
        """Marks the padding in a mask `(B, H, W)` in bool, in place: heads give the same tensor to attention."""
        if self.sizes:
            args[0].logical_or_(self.padding((*args[0].shape[1:],), args[0].device))

    def mask_attention(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Masks the padding in `cross_attn_mask`, `(B * heads, Q, H * W)`; a query that sees nothing sees its image."""
        if self.sizes:
            mask = kwargs['cross_attn_mask']
            padding = next(each for each in self.masks.values() if each[0].numel() == mask.shape[2]).flatten(1)
            padding = padding.repeat_interleave(len(mask) // len(padding), 0)[:, None]
            mask = mask | padding
            kwargs['cross_attn_mask'] = mask & ~mask.all(2, keepdim=True) | padding
        return args, kwargs

    def place_references(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Gives reference points the precision of the features: libraries compute them in float32."""
        shapes, ratios = kwargs['spatial_shapes'], kwargs['valid_ratios']
        sides = shapes.flip(1).to(kwargs['query'])
        kwargs['valid_ratios'] = ratios = (ratios * sides).round() / sides
        if isinstance(layer, transformer.Mask2FormerTransformerEncoder):
            kwargs['reference_points'] = layer.get_encoder_reference_points(shapes, ratios, ratios.device)
        return args, kwargs

    def continue_levels(self, encoder: nn.Module, args: object, kwargs: dict[str, Any], x: Tensor) -> None:
        """Continues images in the maps of a pixel decoder, which come as `(B, N, C)`, one level after the other."""
        if self.sizes:
            starts = kwargs['level_start_index'].tolist()
            for (h, w), start in zip(kwargs['spatial_shapes'].tolist(), starts, strict=True):
                self.continue_images(encoder, (), x[:, start:start + h * w].transpose(1, 2).unflatten(2, (h, w)))

    def place_queries(self, head: transformer.MLP, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
                      ) -> Arguments:
        """Encodes where the boxes of queries are in their image: DINO encodes where they are in the batch."""
        if self.sizes:
            boxes, channels = kwargs['reference_points'][:, :, 0], head.layers[0].in_features // 4  # two distributions
            scale = boxes.new_tensor([[self.whole[1] / w, self.whole[0] / h] * 2 for h, w in self.sizes])
            kwargs['query_pos'] = head(transformer.coordinate_to_encoding(boxes * scale[:, None], channels))
        return args, kwargs
