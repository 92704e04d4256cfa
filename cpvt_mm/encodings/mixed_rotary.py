"""Rotary position encoding with learnt frequencies in two dimensions."""
import math

import torch
from torch import Tensor, nn

from cpvt_mm.models.grid import Grid, token_centers
from cpvt_mm.models.validation import check_above
from cpvt_mm.registry import POSITION_ENCODINGS

from .base import PositionEncoding, StageSpec
from .rotary import check_head_dims, rotate
from .sinusoidal import frequencies


@POSITION_ENCODINGS.register_module()
class MixedRotaryPE(PositionEncoding):
    """Rotates queries and keys by angles that are learnt functions of the row and the column together.

    This is RoPE-Mixed (arXiv 2403.13298, section 3.2). Each block and head has its own frequencies: channel k of C and
    channel k + C / 2 form a pair, which turns by `f_y[k] * row + f_x[k] * column`. Positions are counted in tokens, and
    a key of a reduced grid lies at the centre of the tokens it covers. As in the original, the vectors (f_y, f_x) start
    at the lengths of `RotaryPE`, in two directions at a right angle that are random for each head.

    Args:
        stage: The blocks it is for. The channels of a head must be divisible by 4.
        temperature: Approximate ratio of the longest to the shortest initial period. Defaults to 10, as in the
            original.

    Raises:
        ValueError: If the channels of a head are not divisible by 4, or `temperature` is not above 1.
    """

    def __init__(self, stage: StageSpec, temperature: float = 10.) -> None:
        super().__init__(stage)
        check_head_dims(self)
        check_above('temperature', temperature, 1)
        lengths = frequencies(stage.head_dims // 2, temperature, torch.device('cpu'))
        self.frequencies = nn.ParameterList(_draw(lengths, stage.num_heads) for _ in range(stage.depth))

    def qk(self, q: Tensor, k: Tensor, index: int, grid: Grid, key_grid: Grid) -> tuple[Tensor, Tensor]:
        return self._rotate(q, index, grid), self._rotate(k, index, key_grid)

    def _rotate(self, x: Tensor, index: int, cells: Grid) -> Tensor:
        y_places = token_centers(cells.height, cells.cell_height, x.device)[:, None, None]
        x_places = token_centers(cells.width, cells.cell_width, x.device)[:, None]
        of_rows, of_columns = self.frequencies[index].float()[:, :, None, None]  # (heads, 1, 1, C / 2) each
        angles = (y_places * of_rows + x_places * of_columns).flatten(1, 2)  # (heads, H * W, C / 2)
        first, second = x.chunk(2, dim=-1)
        return torch.cat(rotate(first, second, torch.stack([angles.cos(), angles.sin()])), dim=-1)


def _draw(lengths: Tensor, num_heads: int) -> nn.Parameter:
    """Draws initial frequencies of rows and columns: `(2, heads, C / 2)`, for lengths `(C / 4,)`."""
    first = 2 * math.pi * torch.rand(num_heads, 1)
    lengths = lengths.to(first.device)
    angles = torch.cat([first, first + math.pi / 2], dim=1)[..., None]  # (heads, 2, 1)
    return nn.Parameter(torch.stack([lengths * angles.sin(), lengths * angles.cos()]).flatten(2))
