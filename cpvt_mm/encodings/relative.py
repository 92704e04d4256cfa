"""Learnt vectors for the offset of the key, which are added to keys (Shaw et al.)."""
import torch
from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.validation import check_positive

from .base import PositionEncoding, StageSpec
from .coordinates import offsets


@POSITION_ENCODINGS.register_module()
class RelativePE(PositionEncoding):
    """Adds learnt vectors to each key: one for its row offset from the query, and one for its column offset.

    This is Shaw et al. (arXiv 1803.02155, section 3.2, equation 4) along both axes: the logit is
    `q . (k + a_rows + a_columns)`, divided by the square root of the head's channels. Offsets are in query tokens and
    clipped; vectors for fractional offsets are interpolated. The heads of a block share its vectors, which start from a
    truncated normal of std 1. The bias needs memory for every pair of query and key.

    Args:
        max_distance: The paper's clipping distance K, in tokens, at least 1. Defaults to 8.
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
        distances = offsets(length, key_length, cell, table.device)
        places = distances.clamp(-self.max_distance, self.max_distance) + self.max_distance
        below, above = places.floor(), places.ceil()
        return torch.lerp(table[below.long()], table[above.long()], (places - below)[..., None].to(table.dtype))
