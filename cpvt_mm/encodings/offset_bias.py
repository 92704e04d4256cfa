"""Base class of biases of the logits that depend only on the offset of the key from the query."""
from torch import Tensor

from cpvt_mm.tokens.grid import Grid

from .base import PositionEncoding
from .coordinates import distinct_offsets


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
