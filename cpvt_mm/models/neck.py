"""A neck that makes a feature pyramid from the single map of a plain backbone."""
import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS as MMENGINE_MODELS
from torch import Tensor, nn

from cpvt_mm.registry import MODELS
from cpvt_mm.tokens.sizes import round_up
from cpvt_mm.tokens.validation import check_choice, is_sequence_of_ints


class LayerNorm2d(nn.Module):
    """LayerNorm over the channels of `(B, C, H, W)`, eps 1e-6. Configs select it by `norm` in its names."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class CeilMaxPool2d(nn.Module):
    """Max pooling over 2 x 2 cells: `(B, C, H, W)` -> `(B, C, ceil(H / 2), ceil(W / 2))`."""

    def forward(self, x: Tensor) -> Tensor:
        # Not ceil_mode: torch cannot export it with dynamic sizes.
        below, right = (round_up(side, 2) - side for side in x.shape[2:])
        return F.max_pool2d(F.pad(x, (0, right, 0, below), value=-math.inf), 2)


def rescale(channels: int, factor: float) -> tuple[nn.Sequential, int]:
    """Returns layers that scale a map by a power of two, and their output channels, halved by each doubling."""
    steps = round(math.log2(factor))
    layers: list[nn.Module] = []
    for step in range(steps):
        if step:
            layers += [LayerNorm2d(channels), nn.GELU()]
        layers.append(nn.ConvTranspose2d(channels, channels // 2, 2, stride=2))
        channels //= 2
    layers += [CeilMaxPool2d() for _ in range(-steps)]
    return nn.Sequential(*layers), channels


@MMENGINE_MODELS.register_module(force=True)
@MODELS.register_module()
class SimpleFeaturePyramid(BaseModule):
    """Makes a feature pyramid from the last map of a plain backbone (ViTDet, arXiv 2203.16527, section 3).

    Transposed convolutions make finer maps, and max pooling makes coarser maps. A 1x1 and a 3x3 convolution follow,
    each with a LayerNorm over channels. Use it in place of an FPN in Mask R-CNN, or before the head of UperNet.

    Args:
        in_channels: Channels of the input map; divisible by the largest upscaling.
        in_stride: Stride of the input map, a power of two. Only its ratio to `strides` counts: with patches of 14
            pixels and the default, outputs have strides 3.5, 7, 14 and 28. Defaults to 16.
        out_channels: Channels of each output. Defaults to 256.
        strides: Strides of the outputs, increasing powers of two. Defaults to (4, 8, 16, 32).
        num_outs: Number of outputs; those beyond `strides` subsample the previous one by two. Defaults to None: as many
            as `strides`.
        init_cfg: mmengine's initialisation config. Defaults to None.
    """

    def __init__(self, in_channels: int, in_stride: int = 16, out_channels: int = 256,
                 strides: Sequence[int] = (4, 8, 16, 32), num_outs: int | None = None,
                 init_cfg: dict[str, Any] | list[dict[str, Any]] | None = None) -> None:
        super().__init__(init_cfg)
        powers = [2**i for i in range(12)]
        check_choice('in_stride', in_stride, powers)
        if not is_sequence_of_ints(strides) or not strides or list(strides) != [s for s in powers if s in strides]:
            raise ValueError(f'strides is {strides!r}, but must be a sequence of increasing powers of two.')
        upscaling = max(in_stride // strides[0], 1)
        if in_channels % upscaling:
            raise ValueError(f'in_channels is {in_channels}, but must be divisible by {upscaling}, the upscaling from '
                             f'stride {in_stride} to {strides[0]}.')
        num_outs = len(strides) if num_outs is None else num_outs
        if not isinstance(num_outs, int) or num_outs < len(strides):
            raise ValueError(f'num_outs is {num_outs!r}, but must be an int of at least {len(strides)}, the number of '
                             'strides.')
        self.num_outs = num_outs
        self.levels = nn.ModuleList()
        for stride in strides:
            scaling, channels = rescale(in_channels, in_stride / stride)
            self.levels.append(nn.Sequential(
                scaling,
                nn.Conv2d(channels, out_channels, 1, bias=False),
                LayerNorm2d(out_channels),
                nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
                LayerNorm2d(out_channels)))

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Makes `num_outs` contiguous maps `(B, out_channels, H, W)` from the last of `maps`, `(B, in_channels, h, w)`.

        For stride s, H is h times `in_stride / s`, rounded up.
        """
        outs = [level(maps[-1]).contiguous() for level in self.levels]
        while len(outs) < self.num_outs:
            outs.append(F.max_pool2d(outs[-1], 1, stride=2))
        return tuple(outs)
