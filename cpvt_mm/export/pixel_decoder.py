"""The pixel decoder of Mask2Former (arXiv 2112.01527, section 3.2) as code that can be exported for any size."""
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.tokens.grid import Size, to_tokens


def take_any_size(model: nn.Module) -> None:
    """Replaces the pixel decoders of Mask2Former in a model by those that can be exported, in place."""
    for head in model.modules():
        if type(getattr(head, 'pixel_decoder', None)).__name__ == 'MSDeformAttnPixelDecoder':
            head.pixel_decoder = AnySizePixelDecoder(head.pixel_decoder)


class AnySizePixelDecoder(nn.Module):
    """Computes the same as mmdet's `MSDeformAttnPixelDecoder`, with its layers, but does not store sizes in tensors."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.source = source

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Returns the mask features, and maps with several strides, the coarsest first; all are `(B, C, H, W)`."""
        source = self.source
        levels = list(reversed(maps))[:source.num_encoder_levels]
        sizes = [(x.shape[2], x.shape[3]) for x in levels]
        x = torch.cat([to_tokens(conv(level)) for conv, level in zip(source.input_convs, levels, strict=True)], 1)
        positions = [to_tokens(source.postional_encoding(torch.zeros_like(level[:, 0], dtype=torch.bool)))
                     for level in levels]
        position = torch.cat([encoded + source.level_encoding.weight[i] for i, encoded in enumerate(positions)], 1)
        places = torch.cat([centers(size, x) for size in sizes])
        for layer in source.encoder.layers:
            x = layer.norms[0](attend(layer.self_attn, x, position, places, sizes))
            x = layer.norms[1](layer.ffn(x))
        outs = [part.transpose(1, 2).unflatten(2, size) for part, size in zip(
            x.split([h * w for h, w in sizes], 1), sizes, strict=True)]
        for i in reversed(range(len(maps) - len(levels))):
            lateral = source.lateral_convs[i](maps[i])
            coarser = F.interpolate(outs[-1], (lateral.shape[2], lateral.shape[3]), mode='bilinear')
            outs.append(source.output_convs[i](lateral + coarser))
        return source.mask_feature(outs[-1]), outs[:source.num_outs]


def centers(size: Size, like: Tensor) -> Tensor:
    """Returns x and y of the centers of the cells of a map, `(H * W, 2)`, from 0 to 1."""
    y, x = ((torch.arange(length, device=like.device, dtype=like.dtype) + 0.5) / length for length in size)
    return torch.stack((x.expand(size), y[:, None].expand(size)), 2).flatten(0, 1)


def attend(attention: Any, x: Tensor, position: Tensor, places: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Applies mmcv's `MultiScaleDeformableAttention` (arXiv 2010.04159, section 4.1) to `x`, and adds `x`.

    `x` and `position` are tokens of all levels and their encodings, `(B, N, C)`, one level after the other; `places`
    are their `centers`, `(N, 2)`.
    """
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch
    query = x + position
    shape = x.shape[0], x.shape[1], attention.num_heads, len(sizes), attention.num_points
    offsets = attention.sampling_offsets(query).view(*shape, 2)
    steps = [torch.stack((offsets[..., i, :, 0] / w, offsets[..., i, :, 1] / h), 4) for i, (h, w) in enumerate(sizes)]
    locations = places[:, None, None, None] + torch.stack(steps, 3)
    weights = attention.attention_weights(query).view(*shape[:3], -1).softmax(3).view(shape)
    values = attention.value_proj(x).view(*shape[:3], -1)
    sampled = multi_scale_deformable_attn_pytorch(values, sizes, locations, weights)
    return x + attention.output_proj(sampled)
