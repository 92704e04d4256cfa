"""Axial rotary position encoding."""
import torch
from torch import Tensor

from cpvt_mm.registry import POSITION_ENCODINGS

from ..grid import Grid, token_centers
from ..validation import check_above
from .base import PositionEncoding, StageSpec
from .cache import cached
from .sinusoidal import frequencies


@cached
def rotation(length: int, cell: float, dims: int, temperature: float, device: torch.device) -> Tensor:
    """Returns cosines and sines of `dims / 2` angles for each cell of one axis: `(2, length, dims / 2)`, float32."""
    angles = token_centers(length, cell, device)[:, None] * frequencies(dims, temperature, device)
    return torch.stack([angles.cos(), angles.sin()])


@POSITION_ENCODINGS.register_module()
class RotaryPE(PositionEncoding):
    """Rotates queries and keys by angles proportional to their position, so that logits depend on relative positions.

    This is RoFormer's encoding (arXiv 2104.09864, section 3.2) along two axes: the row rotates one half of a head's
    channels, the column rotates the other. In each half, channel k and channel k + C / 4 form a pair, with C the
    channels of a head. With spatial reduction, a key lies at the center of the tokens it covers.

    Args:
        stage: The blocks it is for. The channels of a head must be divisible by 4.
        temperature: Approximate ratio of the longest to the shortest period. Defaults to 100; the paper's 10000 is for
            texts of thousands of tokens.

    Raises:
        ValueError: If the channels of a head are not divisible by 4, or `temperature` is not above 1.
    """

    def __init__(self, stage: StageSpec, temperature: float = 100.) -> None:
        super().__init__(stage)
        if stage.head_dims % 4:
            raise ValueError(f'RotaryPE needs heads of a multiple of 4 channels, but embed_dims {stage.embed_dims} '
                             f'over num_heads {stage.num_heads} gives {stage.head_dims}.')
        check_above('temperature', temperature, 1)
        self.temperature = temperature

    def qk(self, x: Tensor, grid: Grid) -> Tensor:
        dims = x.shape[-1] // 2
        of_rows = rotation(grid.height, grid.cell_height, dims, self.temperature, x.device)
        of_columns = rotation(grid.width, grid.cell_width, dims, self.temperature, x.device)
        y_rotation, x_rotation = of_rows[:, :, None], of_columns[:, None]  # (2, H, 1, dims/2), (2, 1, W, dims/2)
        cells = x.unflatten(2, (grid.height, grid.width))  # (B, heads, H, W, C / heads)
        y_first, y_second, x_first, x_second = cells.chunk(4, dim=-1)
        rotated = [*rotate(y_first, y_second, y_rotation), *rotate(x_first, x_second, x_rotation)]
        return torch.cat(rotated, dim=-1).flatten(2, 3)


def rotate(first: Tensor, second: Tensor, cos_and_sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates points with the coordinates `first` and `second` in their plane."""
    cos, sin = cos_and_sin.to(first.dtype)
    return first * cos - second * sin, first * sin + second * cos
