"""Biases of the logits by the offset of the key: Shaw et al., Swin V2, FIRE and LookHere."""
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.coordinates import cached, token_centers
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.validation import check_above, check_positive

from .base import PositionEncoding, StageSpec


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


class OffsetMLP(nn.Module):
    """Two linear layers with a ReLU between: coordinates of an offset -> heads. `bias` is that of the second."""

    def __init__(self, hidden_dims: int, num_heads: int, bias: bool) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, num_heads, bias)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """Computes a table for all pairs of a row coordinate `(R,)` and a column coordinate `(C,)`: `(heads, R, C)`."""
        points = torch.stack([y[:, None].expand(-1, len(x)), x.expand(len(y), -1)], dim=-1)
        return self.fc2(F.relu(self.fc1(points.to(self.fc1.weight.dtype)))).movedim(-1, 0)


@POSITION_ENCODINGS.register_module()
class RelativePE(PositionEncoding):
    """Adds learnt vectors for the row and column offset between query and key to each key.

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


@POSITION_ENCODINGS.register_module()
class ContinuousRelativePE(OffsetBias):
    """Adds to a logit what a small network computes from the offset of the key, on a logarithmic scale.

    This is the bias of Swin Transformer V2 (arXiv 2111.09883, section 3.3), for whole grids: `16 * sigmoid(MLP(y, x))`.
    With d an offset in query tokens along one axis, divided by the largest one for an image of the backbone's
    `img_size`, the coordinate is `sign(d) * log2(1 + 8 * |d|) / log2(8)`. Set `img_size` to the size of the training.
    Each block has an MLP of two linear layers, of std 0.02 as in the original code. The bias needs memory for every
    pair of query and key.

    Args:
        hidden_dims: Hidden channels of the MLP. Defaults to 512, as in the original code.
    """

    def __init__(self, stage: StageSpec, hidden_dims: int = 512) -> None:
        super().__init__(stage)
        self.blocks = nn.ModuleList(OffsetMLP(hidden_dims, stage.num_heads, bias=False) for _ in range(stage.depth))

    def table(self, index: int, rows: Tensor, columns: Tensor, grid: Grid, key_grid: Grid) -> Tensor:
        y, x = (offsets.sign() * torch.log1p(8 / max(side - 1, 1) * offsets.abs()) / math.log(8)
                for offsets, side in zip((rows, columns), self.stage.grid, strict=True))
        return 16 * self.blocks[index](y, x).sigmoid()


@POSITION_ENCODINGS.register_module()
class FirePE(OffsetBias):
    """Adds to a logit what a small network computes from the offset of the key, relative to the size of the image.

    This is FIRE (arXiv 2310.04418, section 3) along two axes. With d the offset along an axis, in query tokens, and n
    the query tokens along it, the coordinate is `sign(d) * log(1 + c * |d|) / log(1 + c * max(L, n))`, and the bias is
    `MLP(y, x)`. The paper has a query's position in place of n, and no sign, because text has one direction.

    Each block learns c, L of each axis, and an MLP of two linear layers. L starts at the side of the grid for an image
    of the backbone's `img_size`, which should be that of the training: longer sides are interpolated. The bias needs
    memory for every pair of query and key.

    Args:
        hidden_dims: Hidden channels of the MLP. Defaults to 32, as in the paper.
        scale: Initial value of c, per token, above 0. Defaults to 0.1, as in the paper.
    """

    def __init__(self, stage: StageSpec, hidden_dims: int = 32, scale: float = 0.1) -> None:
        super().__init__(stage)
        check_above('scale', scale, 0)
        self.blocks = nn.ModuleList(_Fire(hidden_dims, stage.num_heads, scale, stage.grid)
                                    for _ in range(stage.depth))

    def table(self, index: int, rows: Tensor, columns: Tensor, grid: Grid, key_grid: Grid) -> Tensor:
        return self.blocks[index](rows, columns, grid)

    def init_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()


class _Fire(nn.Module):
    """The function of one block."""

    def __init__(self, hidden_dims: int, num_heads: int, scale: float, grid: tuple[int, int]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.threshold = nn.Parameter(torch.tensor(grid, dtype=self.scale.dtype))
        self.mlp = OffsetMLP(hidden_dims, num_heads, bias=True)

    def forward(self, rows: Tensor, columns: Tensor, grid: Grid) -> Tensor:
        coordinates = []
        for offsets, threshold, side in zip((rows, columns), self.threshold, (grid.height, grid.width), strict=True):
            scale = self.scale.float().abs()  # a distance must not become negative
            tokens = torch.full((), side, dtype=torch.float32, device=rows.device)
            longest = torch.maximum(threshold.float().abs(), tokens)
            # 1e-6 as in the paper's code: c may become 0.
            coordinates.append(offsets.sign() * torch.log1p(scale * offsets.abs())
                               / (torch.log1p(scale * longest) + 1e-6))
        return self.mlp(*coordinates)


# In degrees, clockwise from upwards. Opposite ones are neighbours, so that two heads see both ways.
DIRECTIONS = (0, 180, 90, 270, 45, 225, 135, 315)
# Of heads that see all keys.
FAR_SLOPES = (1 / 2, 1 / 8, 1 / 32, 1 / 128)


def directed_heads(stage: StageSpec, index: int) -> Tensor:
    """Returns LookHere's direction of each head, to the right and down, and its slope in block `index`: `(3, heads)`.

    It is on the CPU in float32. A head that looks everywhere has no direction, (0, 0).
    """
    count = stage.num_heads - stage.num_heads // 3
    slope = 1.5 - index / max(stage.depth - 1, 1)
    degrees = [DIRECTIONS[(index * count + head) % len(DIRECTIONS)] for head in range(count)]
    heads = [(math.sin(math.radians(degree)), -math.cos(math.radians(degree)), slope) for degree in degrees]
    heads += [(0., 0., slope * FAR_SLOPES[head % len(FAR_SLOPES)]) for head in range(stage.num_heads - count)]
    return torch.tensor(heads, dtype=torch.float32, device='cpu').T


@POSITION_ENCODINGS.register_module()
class LookHerePE(OffsetBias):
    """Lets each head look in one direction, and not far: a fixed bias, without weights (LookHere, arXiv 2405.13985).

    A third of the heads, rounded down, see all keys. The others see the key whose cell the query is in, and a field of
    view (section 3): up, down, right, left, then between these. With fewer than eight such heads, the next block goes
    on with the next directions. The bias is minus the distance, times the slopes of block (1.5 in the first to 0.5 in
    the last) and head (1 with a field of view; 1/2, 1/8, 1/32, 1/128 in turns without, as in the authors' code).

    Distances are in cells of the key grid; in tokens, keys of reduced grids would be as good as masked. The bias needs
    memory for every pair of query and key. Attention stays fused.

    Args:
        fov: The field of view, in degrees, above 0. Defaults to 90, the paper's LH-90; 360 sees everything.
        slope: A factor of all slopes, above 0, in logits per key cell. Defaults to 1.
    """

    def __init__(self, stage: StageSpec, fov: float = 90., slope: float = 1.) -> None:
        super().__init__(stage)
        check_above('fov', fov, 0)
        check_above('slope', slope, 0)
        self.fov = fov
        self.slope = slope

    def table(self, index: int, rows: Tensor, columns: Tensor, grid: Grid, key_grid: Grid) -> Tensor:
        y, x = rows[:, None], columns  # a key above the query has a negative y
        heads = directed_heads(self.stage, index).to(x.device, non_blocking=True)
        right, down, slopes = heads[..., None, None]
        # The borders of a field of view belong to it, in spite of rounding.
        narrowest = math.cos(math.radians(min(self.fov, 360) / 2)) - 1e-3
        is_seen = right * x + down * y >= narrowest * (y.square() + x.square()).sqrt()
        is_own = (y.abs() <= key_grid.cell_height / 2 + 1e-3) & (x.abs() <= key_grid.cell_width / 2 + 1e-3)
        distances = ((y / key_grid.cell_height).square() + (x / key_grid.cell_width).square()).sqrt()
        # The heads that see all keys have no direction, (0, 0).
        is_masked = ~(is_seen | is_own | ((right == 0) & (down == 0)))
        return (-self.slope * slopes * distances).masked_fill(is_masked, -math.inf)
