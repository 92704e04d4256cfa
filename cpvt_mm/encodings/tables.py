"""Tables with one vector per cell, learnt or random, resampled to the grid of the image."""
from typing import Literal

import torch
from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.coordinates import resample
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.validation import check_above, check_choice, parse_pair

from .base import PositionEncoding, StageSpec


class TablePE(PositionEncoding):
    """Adds a table to the tokens before the first block; a subclass registers it as `table`.

    The arguments are those of `LearnablePE`. The table is `(rows, columns, C)`, or with `ndim=1` `(rows * columns, C)`.
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
        self.antialias = antialias
        self.offset = offset
        self.mode = mode
        self.register_load_state_dict_pre_hook(_check_table)

    @property
    def table_shape(self) -> tuple[int, ...]:
        """Shape of the table; see `ndim`."""
        rows, columns = self.grid
        cells = (rows, columns) if self.ndim == 2 else (rows * columns,)
        return (*cells, self.stage.embed_dims)

    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        if position != -1:
            return x
        table = self.resampled(self.table, (grid.height, grid.width) if self.ndim == 2 else (grid.size,))
        return x + table.reshape(grid.size, -1).to(x.dtype)

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
    """A learnt table (ViT, arXiv 2010.11929, section 3.1), resampled for images of other sizes (section 3.2).

    It is initialised from a truncated normal of std 0.02, and added before the first block.

    Args:
        grid: Rows and columns of the table. Defaults to None: the token grid for the backbone's `img_size`.
        ndim: 2, a grid resampled by `mode`, or 1, a row-major sequence resampled linearly. Defaults to 2.
        antialias: Whether to filter a grid that shrinks, as timm and DINOv2 with registers do. Defaults to False.
        offset: Cells that are added to each side of the new grid to compute the scale. DINOv2 without registers adds
            0.1. Defaults to 0.
        mode: How a grid is resampled, 'bicubic' or 'bilinear', as in PVT. Defaults to 'bicubic'.

    Raises:
        ValueError: If an argument is not allowed, or a checkpoint's table is a sequence of another length (its number
            of rows is unknown), or has other channels.
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
        std: Standard deviation of the noise. Defaults to 1.

    Raises:
        ValueError: If `grid`, `ndim` or `std` is not allowed, or the table of a checkpoint has another size.
    """

    def __init__(self, stage: StageSpec, grid: tuple[int, int] | None = None, ndim: int = 2, std: float = 1.) -> None:
        super().__init__(stage, grid, ndim)
        check_above('std', std, 0)
        self.register_buffer('table', std * torch.randn(self.table_shape))
