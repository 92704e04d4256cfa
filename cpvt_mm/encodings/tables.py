"""Encodings that are added to the tokens before the first block: tables, and fixed sines and cosines."""
import math
from typing import Literal

import torch
from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.tracing import cached
from cpvt_mm.tokens.validation import check_above, check_choice, parse_pair

from .base import PositionEncoding, StageSpec
from .resampling import resample


class AddedPE(PositionEncoding):
    """Base class for encodings that add a vector to each cell before the first block. It converts the vectors to the
    tokens' dtype.
    """

    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        return x if position != -1 else x + self.added(grid, x.device).reshape(grid.size, -1).to(x.dtype)

    def added(self, grid: Grid, device: torch.device) -> Tensor:
        """Returns the vectors for the cells of one image, `(H, W, C)` or `(H * W, C)`."""
        raise NotImplementedError


class TablePE(AddedPE):
    """Base class for encodings that add a table. See `LearnablePE` for the arguments. Subclasses register `table` with
    the shape `table_shape`.
    """

    table: Tensor

    def __init__(self, stage: StageSpec, grid: tuple[int, int] | None, ndim: int, antialias: bool = False,
                 offset: float = 0., mode: Literal['bicubic', 'bilinear'] = 'bicubic') -> None:
        super().__init__(stage)
        self.grid = parse_pair('grid', stage.grid if grid is None else grid)
        check_choice('ndim', ndim, (1, 2))
        check_choice('antialias', antialias, (False, True))
        check_choice('mode', mode, ('bicubic', 'bilinear'))
        if offset:
            check_above('offset', offset, 0)
        if antialias + bool(offset) + (mode == 'bilinear') > (ndim == 2):
            raise ValueError(f'ndim is {ndim}, antialias {antialias}, offset {offset} and mode {mode!r}. Choose at '
                             "most one of antialias=True, an offset and mode='bilinear'. All three require ndim=2.")
        self.ndim = ndim
        self.table_shape = (*(self.grid if ndim == 2 else (math.prod(self.grid),)), stage.embed_dims)
        self.antialias = antialias
        self.offset = offset
        self.mode = mode
        self.register_load_state_dict_pre_hook(_check_table)

    def added(self, grid: Grid, device: torch.device) -> Tensor:
        return self.resampled(self.table, (grid.height, grid.width) if self.ndim == 2 else (grid.size,))

    def resampled(self, table: Tensor, size: tuple[int, ...]) -> Tensor:
        """Resamples a table to `size` as this encoding does for images."""
        return resample(table, size, self.antialias, self.offset, self.mode)


def _check_table(encoding: TablePE, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
    """Raises a ValueError for a table with another shape, because mmengine would only log this and keep a random table.
    """
    loaded = state_dict.get(f'{prefix}table')
    if loaded is not None and loaded.shape != encoding.table.shape:
        raise ValueError(f'The checkpoint has a position table of shape {tuple(loaded.shape)} ({prefix}table), but the '
                         f'model has one of shape {tuple(encoding.table.shape)}: build the model with the grid or '
                         'img_size that the checkpoint was trained with; images may still have any size.')


@POSITION_ENCODINGS.register_module()
class LearnablePE(TablePE):
    """Adds a learnt vector to each cell before the first block (ViT, arXiv 2010.11929, section 3.1).

    The vectors form a table `(H, W, C)`, or `(H * W, C)` with `ndim=1`. Images with another grid resample the table
    (section 3.2). The initial values are a truncated normal distribution with standard deviation 0.02.

    Args:
        grid: Rows and columns of the table. Defaults to None: the token grid for the backbone's `img_size`.
        ndim: 2 for a table that is resampled along rows and columns with `mode`; 1 for a row-major sequence that is
            resampled linearly. Defaults to 2.
        antialias: Whether to filter before a table shrinks. timm and DINOv2 with registers do so. Defaults to False.
        offset: A number of cells that is added to the height and width of the new grid before the scale is computed.
            DINOv2 without registers adds 0.1. Defaults to 0.
        mode: How to resample, 'bicubic' or 'bilinear'. PVT uses 'bilinear'. Defaults to 'bicubic'.

    Raises:
        ValueError: If arguments contradict each other, or if a checkpoint contains a table with other channels, or a
            sequence with another length. Such a sequence cannot be resampled, because its number of rows is unknown.
    """

    def __init__(self, stage: StageSpec, grid: tuple[int, int] | None = None, ndim: int = 2, antialias: bool = False,
                 offset: float = 0., mode: Literal['bicubic', 'bilinear'] = 'bicubic') -> None:
        super().__init__(stage, grid, ndim, antialias, offset, mode)
        self.table = nn.Parameter(nn.init.trunc_normal_(torch.empty(self.table_shape), std=0.02))

    def fit_weights(self, weights: dict[str, Tensor], prefix: str) -> None:
        """Fits the table `(H, W, C)` of a checkpoint to this grid: resamples it, or flattens it if `ndim` is 1."""
        table = weights.get(f'{prefix}table')
        if table is not None and table.dim() == 3 and table.shape[-1] == self.stage.embed_dims:
            weights[f'{prefix}table'] = self.resampled(table, self.grid) if self.ndim == 2 else table.flatten(0, 1)


@POSITION_ENCODINGS.register_module()
class RandomTablePE(TablePE):
    """Adds fixed normal noise to each cell before the first block.

    Use this encoding as a control for `LearnablePE`: the noise identifies each position but contains no distances.

    Args:
        grid: Rows and columns of the table. Defaults to None: the token grid for the backbone's `img_size`.
        ndim: 2 for a table, 1 for a row-major sequence (see `LearnablePE`). Defaults to 2.
        std: Standard deviation of the noise, above 0. Defaults to 1.

    Raises:
        ValueError: If a checkpoint contains a table with another shape.
    """

    def __init__(self, stage: StageSpec, grid: tuple[int, int] | None = None, ndim: int = 2, std: float = 1.) -> None:
        super().__init__(stage, grid, ndim)
        check_above('std', std, 0)
        self.register_buffer('table', std * torch.randn(self.table_shape))


def frequencies(dims: int, temperature: float, device: torch.device) -> Tensor:
    """Returns `temperature**(-2 k / dims)` for k from 0 to `dims / 2 - 1` (arXiv 1706.03762, section 3.5), float32.

    Python computes the powers, because each runtime rounds `pow` differently, and large positions multiply this error.
    """
    values = torch.tensor([temperature**(-k / dims) for k in range(0, dims, 2)], dtype=torch.float32, device='cpu')
    return values.to(device, non_blocking=True)  # torch.tensor(..., device=device) would wait for a GPU


@cached
def sinusoid(length: int, dims: int, temperature: float, device: torch.device) -> Tensor:
    """Returns sines and cosines of the positions 0 to `length - 1`, `(length, dims)`, float32; sines come first."""
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies(dims, temperature, device)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


@POSITION_ENCODINGS.register_module()
class SinusoidalPE(AddedPE):
    """Adds sines and cosines of the position to the tokens before the first block, for any image size.

    Sines and cosines are computed in float32, and then converted to the tokens' dtype. Sines come first, as in the code
    of MAE (arXiv 2111.06377).

    Args:
        ndim: 2 to encode the row in one half of the channels and the column in the other half; 1 to encode the index in
            the row-major sequence (Vaswani et al., arXiv 1706.03762, section 3.5). Defaults to 2.
        temperature: Approximate ratio of the longest to the shortest period, above 1. Defaults to 10000.

    Raises:
        ValueError: If `2 * ndim` does not divide `embed_dims`, or if another argument is invalid.
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

    def added(self, grid: Grid, device: torch.device) -> Tensor:
        dims = self.stage.embed_dims // self.ndim
        if self.ndim == 1:
            return sinusoid(grid.size, dims, self.temperature, device)
        of_row = sinusoid(grid.height, dims, self.temperature, device)[:, None]
        of_column = sinusoid(grid.width, dims, self.temperature, device)
        return torch.cat([of_row.expand(-1, grid.width, -1), of_column.expand(grid.height, -1, -1)], dim=2)


@POSITION_ENCODINGS.register_module()
class RandomFourierPE(AddedPE):
    """Adds random Fourier features of the cell centers to the tokens before the first block, for any image size.

    Coordinates run from -1 to 1 over the grid (SAM, arXiv 2304.02643, appendix A; Tancik et al., arXiv 2006.10739).

    Args:
        scale: Standard deviation of the frequencies, in periods per half image. Must be above 0. Defaults to 1.

    Raises:
        ValueError: If `embed_dims` is odd, or `scale` is not above 0.
    """

    frequencies: Tensor

    def __init__(self, stage: StageSpec, scale: float = 1.) -> None:
        super().__init__(stage)
        if stage.embed_dims % 2:
            raise ValueError(f'RandomFourierPE needs even embed_dims, but the stage has {stage.embed_dims}.')
        check_above('scale', scale, 0)
        self.register_buffer('frequencies', scale * torch.randn(2, stage.embed_dims // 2))

    def added(self, grid: Grid, device: torch.device) -> Tensor:
        y, x = (2 * math.pi * (2 * (torch.arange(side, dtype=torch.float32, device=device) + 0.5) / side - 1)
                for side in (grid.height, grid.width))
        of_rows, of_columns = self.frequencies.float()
        angles = y[:, None, None] * of_rows + x[:, None] * of_columns
        return torch.cat([angles.sin(), angles.cos()], dim=-1)
