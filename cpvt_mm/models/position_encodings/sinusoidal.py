"""Fixed sines and cosines, either of the position or of random projections of it."""
import math

import torch
from torch import Tensor

from cpvt_mm.registry import POSITION_ENCODINGS

from ..arguments import check_above, check_keywords
from .base import PositionEncoding, StageSpec
from .cache import cached
from .frequencies import frequencies


@cached
def sinusoid(length: int, dims: int, temperature: float, device: torch.device) -> Tensor:
    """Returns sines, then cosines, of positions 0 to `length - 1` at `dims / 2` frequencies `temperature**(-2k/dims)`.

    Returns:
        `(length, dims)`, float32.
    """
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies(dims, temperature, device)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


@POSITION_ENCODINGS.register_module()
class SinusoidalPE(PositionEncoding):
    """Adds sines and cosines of the position to the tokens before the first block, for any image size.

    `ndim=1` encodes the index in the row-major sequence (Vaswani et al., arXiv 1706.03762, section 3.5). `ndim=2`
    encodes the row in one half of the channels and the column in the other. Sines come before cosines, as in the code
    of MAE (arXiv 2111.06377); DETR (arXiv 2005.12872) interleaves them. They are computed in float32 and added in the
    dtype of the tokens.

    Args:
        stage: The blocks it is for. `embed_dims` must be divisible by 2 * `ndim`.
        ndim: 2: row and column. 1: the index in the row-major sequence of tokens. Defaults to 2.
        temperature: Approximate ratio of the longest to the shortest period. Defaults to 10000.

    Raises:
        ValueError: If `embed_dims` is not divisible, `ndim` is not 1 or 2, or `temperature` is not above 1.
        TypeError: If an argument's name is unknown.
    """

    @check_keywords
    def __init__(self, stage: StageSpec, ndim: int = 2, temperature: float = 10000.) -> None:
        super().__init__(stage)
        if ndim not in (1, 2):
            raise ValueError(f'ndim is {ndim!r}, but must be 1 (tokens in a row) or 2 (tokens in a grid).')
        if stage.embed_dims % (2 * ndim):
            raise ValueError(f'SinusoidalPE of ndim {ndim} needs embed_dims divisible by {2 * ndim}, but the stage has '
                             f'{stage.embed_dims}.')
        check_above('temperature', temperature, 1)
        self.ndim = ndim
        self.temperature = temperature

    def at_entry(self, x: Tensor) -> Tensor:
        rows, columns, dims = x.shape[1:]
        if self.ndim == 1:
            table = sinusoid(rows * columns, dims, self.temperature, x.device).view(rows, columns, dims)
        else:
            of_row = sinusoid(rows, dims // 2, self.temperature, x.device)[:, None]
            of_column = sinusoid(columns, dims // 2, self.temperature, x.device)
            table = torch.cat([of_row.expand(-1, columns, -1), of_column.expand(rows, -1, -1)], dim=2)
        return x + table.to(x.dtype)


@POSITION_ENCODINGS.register_module()
class RandomFourierPE(PositionEncoding):
    """Adds random Fourier features of the cell centers to the tokens before the first block, for any image size.

    Coordinates run from -1 to 1 over the grid, whatever its size: positions are relative to the image, not counted in
    tokens. The formula is that of SAM (arXiv 2304.02643, appendix A; Tancik et al., arXiv 2006.10739).

    Args:
        stage: The blocks it is for. `embed_dims` must be even.
        scale: Standard deviation of the frequencies, in periods per unit, half an image. Defaults to 1.

    Raises:
        ValueError: If `embed_dims` is odd or `scale` is not positive.
        TypeError: If an argument's name is unknown.
    """

    frequencies: Tensor

    @check_keywords
    def __init__(self, stage: StageSpec, scale: float = 1.) -> None:
        super().__init__(stage)
        if stage.embed_dims % 2:
            raise ValueError(f'RandomFourierPE needs even embed_dims, but the stage has {stage.embed_dims}.')
        check_above('scale', scale, 0)
        self.register_buffer('frequencies', scale * torch.randn(2, stage.embed_dims // 2))

    def at_entry(self, x: Tensor) -> Tensor:
        y, x_ = (self._angles(length, axis) for axis, length in enumerate(x.shape[1:3]))
        angles = y[:, None] + x_
        return x + torch.cat([angles.sin(), angles.cos()], dim=2).to(x.dtype)

    def _angles(self, length: int, axis: int) -> Tensor:
        """Returns the contribution of one axis to the angles: `(length, embed_dims / 2)`, float32."""
        centers = (torch.arange(length, dtype=torch.float32, device=self.frequencies.device) + 0.5) / length
        # SAM maps coordinates to [-1, 1] before projecting them.
        return 2 * math.pi * (2 * centers[:, None] - 1) * self.frequencies[axis].float()
