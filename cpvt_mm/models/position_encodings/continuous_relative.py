"""Continuous relative position bias on a logarithmic scale."""
import math

import torch
from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS

from ..grid import Grid
from ..validation import check_positive
from .base import StageSpec
from .offsets import OffsetBias, OffsetMLP


@POSITION_ENCODINGS.register_module()
class ContinuousRelativePE(OffsetBias):
    """Adds to a logit what a small network computes from the offset of the key, on a logarithmic scale.

    This is the bias of Swin Transformer V2 (arXiv 2111.09883, section 3.3), for whole grids in the place of windows:
    `16 * sigmoid(MLP(y, x))`. With d an offset in query tokens along one axis, divided by the largest one on the grid
    for an image of the backbone's `img_size`, the coordinate is `sign(d) * log2(1 + 8 * |d|) / log2(8)`. Set `img_size`
    to the size of the training: then coordinates of larger images are a little beyond those of the training. Each block
    has an MLP of two linear layers. As in the original code, initial weights have a std of 0.02, so that at first the
    bias is almost the same for all keys.

    The bias needs memory for every pair of query and key.

    Args:
        stage: The blocks it is for.
        hidden_dims: Hidden channels of the MLP. Defaults to 512, as in the original code.

    Raises:
        ValueError: If `hidden_dims` is not an int of at least 1.
    """

    def __init__(self, stage: StageSpec, hidden_dims: int = 512) -> None:
        super().__init__(stage)
        check_positive('hidden_dims', hidden_dims)
        self.blocks = nn.ModuleList(OffsetMLP(hidden_dims, stage.num_heads, bias=False) for _ in range(stage.depth))

    def table(self, index: int, rows: Tensor, columns: Tensor, grid: Grid, key_grid: Grid) -> Tensor:
        y, x = (_coordinates(offsets, side) for offsets, side in zip((rows, columns), self.stage.grid, strict=True))
        return 16 * self.blocks[index](y, x).sigmoid()


def _coordinates(offsets: Tensor, side: int) -> Tensor:
    return offsets.sign() * torch.log1p(8 / max(side - 1, 1) * offsets.abs()) / math.log(8)
