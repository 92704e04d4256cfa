"""Offsets of keys from queries, and biases of the logits that depend on them."""
import torch
from torch import Tensor

from cpvt_mm.tokens.coordinates import token_centers
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.tracing import cached

from .base import PositionEncoding


@cached
def offsets(length: int, key_length: int, cell: float, device: torch.device) -> Tensor:
    """Returns offsets, in query tokens, of keys (their centres) along one axis: `(length, key_length)`, float32."""
    return token_centers(key_length, cell, device) - token_centers(length, device=device)[:, None]


@cached
def distinct_offsets(length: int, key_length: int, cell: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the values in `offsets`, `(n,)`, and where each pair has its own, `(length, key_length)`, int64.

    Each value is there once if `cell` is an int: they are `2 * length - 1` on equal grids.
    """
    if not isinstance(cell, int):
        places = torch.arange(length * key_length, device=device).unflatten(0, (length, key_length))
        return offsets(length, key_length, cell, device).flatten(), places
    values = torch.arange((key_length - 1) * cell + length, dtype=torch.float32, device=device)
    queries, keys = torch.arange(length, device=device), torch.arange(key_length, device=device)
    return values + ((cell + 1) / 2 - length), keys * cell + (length - 1 - queries)[:, None]


class OffsetBias(PositionEncoding):
    """Base class of biases that depend only on the row and column offsets of the key from the query, and on the head.

    The table of a subclass has all pairs of such offsets, `(2 H - 1) x (2 W - 1)` on equal grids.
    """

    def table(self, index: int, rows: Tensor, columns: Tensor, grid: Grid, key_grid: Grid) -> Tensor:
        """Computes the bias `(heads, R, C)` of block `index`, for float32 offsets `(R,)` and `(C,)` in query tokens."""
        raise NotImplementedError

    def bias(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> Tensor:
        rows, at_rows = distinct_offsets(grid.height, key_grid.height, key_grid.cell_height, q.device)
        columns, at_columns = distinct_offsets(grid.width, key_grid.width, key_grid.cell_width, q.device)
        table = self.table(index, rows, columns, grid, key_grid)[:, at_rows[:, None, :, None], at_columns[:, None]]
        return table.flatten(3, 4).flatten(1, 2)[None]  # from (heads, H, W, H', W')
