"""Fixed sines and cosines, either of the position or of random projections of it."""
import math

import torch
from torch import Tensor

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.coordinates import cached
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.validation import check_above, check_choice

from .base import PositionEncoding, StageSpec


def frequencies(dims: int, temperature: float, device: torch.device) -> Tensor:
    """Returns `temperature**(-2 k / dims)` for k from 0 to `dims / 2 - 1` (arXiv 1706.03762, section 3.5), float32.

    Python computes them, because the `pow` of runtimes rounds differently, and large positions multiply the error.
    """
    values = torch.tensor([temperature**(-k / dims) for k in range(0, dims, 2)], dtype=torch.float32, device='cpu')
    return values.to(device, non_blocking=True)  # torch.tensor(..., device=device) would wait for a GPU


@cached
def sinusoid(length: int, dims: int, temperature: float, device: torch.device) -> Tensor:
    """Returns sines, then cosines, of positions 0 to `length - 1` at these frequencies: `(length, dims)`, float32."""
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies(dims, temperature, device)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


@POSITION_ENCODINGS.register_module()
class SinusoidalPE(PositionEncoding):
    """Adds sines and cosines of the position to the tokens before the first block, for any image size.

    It is computed in float32 and added in the tokens' dtype. Sines come first, as in MAE's code (arXiv 2111.06377).

    Args:
        ndim: 2: the row in one half of the channels, the column in the other. 1: the index in the row-major sequence
            (Vaswani et al., arXiv 1706.03762, section 3.5). Defaults to 2.
        temperature: Approximate ratio of the longest to the shortest period. Defaults to 10000.

    Raises:
        ValueError: If 2 * `ndim` does not divide `embed_dims`, `ndim` is not 1 or 2, or `temperature` is not above 1.
    """

    def __init__(self, stage: StageSpec, ndim: int = 2, temperature: float = 10000.) -> None:
        super().__init__(stage)
        check_choice('ndim', ndim, (1, 2))
        if stage.embed_dims % (2 * ndim):
            raise ValueError(f'SinusoidalPE of ndim {ndim} needs embed_dims divisible by {2 * ndim}, but the stage has '
                             f'{stage.embed_dims}.')
        check_above('temperature', temperature, 1)
        self.ndim = ndim
        self.temperature = temperature

    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        if position != -1:
            return x
        dims = x.shape[-1]
        if self.ndim == 1:
            table = sinusoid(grid.size, dims, self.temperature, x.device)
        else:
            of_row = sinusoid(grid.height, dims // 2, self.temperature, x.device)[:, None]
            of_column = sinusoid(grid.width, dims // 2, self.temperature, x.device)
            pairs = [of_row.expand(-1, grid.width, -1), of_column.expand(grid.height, -1, -1)]
            table = torch.cat(pairs, dim=2).flatten(0, 1)
        return x + table.to(x.dtype)


@POSITION_ENCODINGS.register_module()
class RandomFourierPE(PositionEncoding):
    """Adds random Fourier features of the cell centers to the tokens before the first block, for any image size.

    Coordinates run from -1 to 1 over the grid (SAM, arXiv 2304.02643, appendix A; Tancik et al., arXiv 2006.10739).

    Args:
        scale: Standard deviation of the frequencies, in periods per unit, half an image. Defaults to 1.

    Raises:
        ValueError: If `embed_dims` is odd or `scale` is not positive.
    """

    frequencies: Tensor

    def __init__(self, stage: StageSpec, scale: float = 1.) -> None:
        super().__init__(stage)
        if stage.embed_dims % 2:
            raise ValueError(f'RandomFourierPE needs even embed_dims, but the stage has {stage.embed_dims}.')
        check_above('scale', scale, 0)
        self.register_buffer('frequencies', scale * torch.randn(2, stage.embed_dims // 2))

    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        if position != -1:
            return x
        angles = (self._angles(grid.height, axis=0)[:, None] + self._angles(grid.width, axis=1)).flatten(0, 1)
        return x + torch.cat([angles.sin(), angles.cos()], dim=1).to(x.dtype)

    def _angles(self, length: int, axis: int) -> Tensor:
        """Returns the contribution of one axis to the angles: `(length, embed_dims / 2)`, float32."""
        centers = (torch.arange(length, dtype=torch.float32, device=self.frequencies.device) + 0.5) / length
        # SAM maps coordinates to [-1, 1] before projecting them.
        return 2 * math.pi * (2 * centers[:, None] - 1) * self.frequencies[axis].float()
