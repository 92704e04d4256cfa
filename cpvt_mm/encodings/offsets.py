"""Offsets of keys from queries, and biases that depend on nothing else."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.models.grid import Grid, token_centers
from cpvt_mm.models.tracing import cached

from .base import PositionEncoding


def offsets(length: int, key_length: int, cell: float, device: torch.device) -> Tensor:
    """Returns offsets of keys from queries along one axis, in query tokens: `(length, key_length)`, float32.

    A key of a reduced grid lies at the centre of the tokens it covers.
    """
    return token_centers(key_length, cell, device) - token_centers(length, device=device)[:, None]


@cached
def distinct_offsets(length: int, key_length: int, cell: float, device: torch.device) -> Tensor:
    """Returns the values in `offsets`, `(n,)`: each once if `cell` is an int, `2 * length - 1` of them on equal grids.
    """
    if isinstance(cell, int):
        return torch.arange((key_length - 1) * cell + length, dtype=torch.float32, device=device) + (
            (cell + 1) / 2 - length)
    return offsets(length, key_length, cell, device).flatten()


@cached
def offset_places(length: int, key_length: int, cell: float, device: torch.device) -> Tensor:
    """Returns where `distinct_offsets` has the offset of each pair: `(length, key_length)`, int64."""
    if isinstance(cell, int):
        return torch.arange(key_length, device=device) * cell + (
            length - 1 - torch.arange(length, device=device))[:, None]
    return torch.arange(length * key_length, device=device).unflatten(0, (length, key_length))


class OffsetBias(PositionEncoding):
    """Base class of biases that depend only on the row and column offsets of the key from the query, and on the head.

    A subclass computes a table, with an entry for each pair of a row offset and a column offset. It is small where the
    key grid has cells of whole query tokens: `(2 H - 1) x (2 W - 1)` on equal grids. With pooled keys
    (`sr_mode='pool'`), cells are fractions, and the table has all pairs of query and key.
    """

    def table(self, index: int, rows: Tensor, columns: Tensor, grid: Grid, key_grid: Grid) -> Tensor:
        """Computes the bias for offsets.

        Args:
            index: Index of the block, counted from 0.
            rows: Row offsets in query tokens, `(R,)`, float32.
            columns: Column offsets, `(C,)`.
            grid: The grid of the queries.
            key_grid: The grid of the keys.

        Returns:
            `(heads, R, C)`.
        """
        raise NotImplementedError

    def bias(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> Tensor:
        of_rows = grid.height, key_grid.height, key_grid.cell_height, q.device
        of_columns = grid.width, key_grid.width, key_grid.cell_width, q.device
        table = self.table(index, distinct_offsets(*of_rows), distinct_offsets(*of_columns), grid, key_grid)
        rows, columns = offset_places(*of_rows)[:, None, :, None], offset_places(*of_columns)[:, None]
        return table[:, rows, columns].flatten(3, 4).flatten(1, 2)[None]  # from (heads, H, W, H', W')


class OffsetMLP(nn.Module):
    """Two linear layers with a ReLU between, from the coordinates of an offset to a number for each head.

    Args:
        hidden_dims: Hidden channels.
        num_heads: Number of heads.
        bias: Whether the second layer has a bias.
    """

    def __init__(self, hidden_dims: int, num_heads: int, bias: bool) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, num_heads, bias)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """Computes a table for all pairs of a row coordinate `(R,)` and a column coordinate `(C,)`: `(heads, R, C)`."""
        points = torch.stack([y[:, None].expand(-1, len(x)), x.expand(len(y), -1)], dim=-1)
        return self.fc2(F.relu(self.fc1(points.to(self.fc1.weight.dtype)))).movedim(-1, 0)
