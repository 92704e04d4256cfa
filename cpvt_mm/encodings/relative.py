"""Relative position encodings."""
import math

import torch
from torch import Tensor, nn

from cpvt_mm.models.grid import Grid
from cpvt_mm.models.tracing import cached
from cpvt_mm.models.validation import check_positive
from cpvt_mm.registry import POSITION_ENCODINGS

from .base import PositionEncoding, StageSpec
from .offsets import OffsetBias, OffsetMLP, offsets


@cached
def clipped_offsets(length: int, key_length: int, cell: float, max_distance: int, device: torch.device) -> Tensor:
    """Returns clipped offsets of keys from queries along one axis, in tokens: `(length, key_length)`, float32."""
    return offsets(length, key_length, cell, device).clamp(-max_distance, max_distance)


@POSITION_ENCODINGS.register_module()
class RelativePE(PositionEncoding):
    """Adds learnt vectors for the row offset and the column offset between query and key to each key.

    This is the encoding of Shaw et al. (arXiv 1803.02155, section 3.2, equation 4) along both axes. The logit is
    `q . (k + a_rows + a_columns)`, divided by the square root of the head's channels. Offsets are in query tokens and
    clipped. A key of a reduced grid lies at the centre of the tokens it covers; vectors for fractional offsets are
    interpolated. Each block has its own vectors, which its heads share. They are initialised from a truncated normal of
    std 1. The bias needs memory for every pair of query and key.

    Args:
        stage: The blocks it is for.
        max_distance: The paper's clipping distance K, in tokens. Defaults to 8.

    Raises:
        ValueError: If `max_distance` is not an int of at least 1.
    """

    def __init__(self, stage: StageSpec, max_distance: int = 8) -> None:
        super().__init__(stage)
        check_positive('max_distance', max_distance)
        self.max_distance = max_distance
        shape = (stage.depth, 2 * max_distance + 1, stage.head_dims)
        # The std is 1, not the usual 0.02. Queries are small at first, so a bias of that std would be far smaller than
        # the logits. Positions would have an effect only after hundreds of iterations.
        self.rows = nn.Parameter(nn.init.trunc_normal_(torch.empty(shape)))
        self.columns = nn.Parameter(nn.init.trunc_normal_(torch.empty(shape)))

    def bias(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> Tensor:
        cells = q.unflatten(2, (grid.height, grid.width)) * self.stage.head_dims**-0.5
        of_rows = self._vectors(self.rows[index], grid.height, key_grid.height, key_grid.cell_height)
        of_columns = self._vectors(self.columns[index], grid.width, key_grid.width, key_grid.cell_width)
        by_row = torch.einsum('bnhwc,hkc->bnhwk', cells, of_rows.to(q.dtype))
        by_column = torch.einsum('bnhwc,wkc->bnhwk', cells, of_columns.to(q.dtype))
        return (by_row[..., :, None] + by_column[..., None, :]).flatten(4, 5).flatten(2, 3)

    def _vectors(self, table: Tensor, length: int, key_length: int, cell: float) -> Tensor:
        """Returns the vector for each pair of query and key along one axis: `(length, key_length, C / heads)`."""
        places = clipped_offsets(length, key_length, cell, self.max_distance, table.device) + self.max_distance
        below, above = places.floor(), places.ceil()
        return torch.lerp(table[below.long()], table[above.long()], (places - below)[..., None].to(table.dtype))


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
        y, x = map(_coordinates, (rows, columns), self.stage.grid)
        return 16 * self.blocks[index](y, x).sigmoid()


def _coordinates(distance: Tensor, side: int) -> Tensor:
    return distance.sign() * torch.log1p(8 / max(side - 1, 1) * distance.abs()) / math.log(8)
