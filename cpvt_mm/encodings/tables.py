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
    """Base class of encodings that add one vector for each cell to the tokens before the first block, in their dtype.
    """

    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        return x if position != -1 else x + self.added(grid, x.device).reshape(grid.size, -1).to(x.dtype)

    def added(self, grid: Grid, device: torch.device) -> Tensor:
        """Computes what is added to the cells of an image, `(H, W, C)` or `(H * W, C)`."""
        raise NotImplementedError


class TablePE(AddedPE):
    """Adds a `table`, which a subclass registers in the shape `table_shape`; the arguments are those of `LearnablePE`.
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
            raise ValueError(f'ndim is {ndim}, antialias {antialias}, offset {offset} and mode {mode!r}, but a table '
                             "of ndim 2 may have one of antialias=True, an offset and mode='bilinear', others none.")
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
    """Raises a ValueError if a table has another shape; mmengine would log this and continue with a random table."""
    loaded = state_dict.get(f'{prefix}table')
    if loaded is not None and loaded.shape != encoding.table.shape:
        raise ValueError(f'The checkpoint has a position table of shape {tuple(loaded.shape)} ({prefix}table), but the '
                         f'model has one of shape {tuple(encoding.table.shape)}: build the model with the grid or '
                         'img_size that the checkpoint was trained with; images may still have any size.')


@POSITION_ENCODINGS.register_module()
class LearnablePE(TablePE):
    """Adds a learnt table before the first block (ViT, arXiv 2010.11929, section 3.1), resampled for images of other
    sizes (section 3.2). It is initialised from a truncated normal of std 0.02.

    Args:
        grid: Rows and columns of the table. Defaults to None: the token grid for the backbone's `img_size`.
        ndim: 2, a grid resampled by `mode`, or 1, a row-major sequence resampled linearly. Defaults to 2.
        antialias: Whether to filter a grid that shrinks, as timm and DINOv2 with registers do. Defaults to False.
        offset: Cells that are added to each side of the new grid to compute the scale. DINOv2 without registers adds
            0.1. Defaults to 0.
        mode: How a grid is resampled, 'bicubic' or 'bilinear', as in PVT. Defaults to 'bicubic'.

    Raises:
        ValueError: If a checkpoint's table is a sequence of another length (its number of rows is unknown), or has
            other channels.
    """

    def __init__(self, stage: StageSpec, grid: tuple[int, int] | None = None, ndim: int = 2, antialias: bool = False,
                 offset: float = 0., mode: Literal['bicubic', 'bilinear'] = 'bicubic') -> None:
        super().__init__(stage, grid, ndim, antialias, offset, mode)
        self.table = nn.Parameter(nn.init.trunc_normal_(torch.empty(self.table_shape), std=0.02))

    def fit_weights(self, weights: dict[str, Tensor], prefix: str) -> None:
        """Resamples or flattens a table `(H, W, C)` for another grid."""
        table = weights.get(f'{prefix}table')
        if table is not None and table.dim() == 3 and table.shape[-1] == self.stage.embed_dims:
            weights[f'{prefix}table'] = self.resampled(table, self.grid) if self.ndim == 2 else table.flatten(0, 1)


@POSITION_ENCODINGS.register_module()
class RandomTablePE(TablePE):
    """A fixed table of normal noise, as a control for `LearnablePE`: it identifies positions but encodes no distances.

    Args:
        grid: As in `LearnablePE`. Defaults to None.
        ndim: As in `LearnablePE`. Defaults to 2.
        std: Standard deviation of the noise, above 0. Defaults to 1.

    Raises:
        ValueError: If the table of a checkpoint has another size.
    """

    def __init__(self, stage: StageSpec, grid: tuple[int, int] | None = None, ndim: int = 2, std: float = 1.) -> None:
        super().__init__(stage, grid, ndim)
        check_above('std', std, 0)
        self.register_buffer('table', std * torch.randn(self.table_shape))


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
class SinusoidalPE(AddedPE):
    """Adds sines and cosines of the position to the tokens before the first block, for any image size.

    It is computed in float32 and added in the tokens' dtype. Sines come first, as in MAE's code (arXiv 2111.06377).

    Args:
        ndim: 2: the row in one half of the channels, the column in the other. 1: the index in the row-major sequence
            (Vaswani et al., arXiv 1706.03762, section 3.5). 2 * `ndim` must divide `embed_dims`. Defaults to 2.
        temperature: Approximate ratio of the longest to the shortest period, above 1. Defaults to 10000.
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
    `embed_dims` must be even.

    Args:
        scale: Standard deviation of the frequencies, above 0, in periods per unit, half an image. Defaults to 1.
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
