"""How a table is resampled to the grid of an image."""
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_mm.tokens.tracing import has_size

from .coordinates import token_centers


def resample(table: Tensor, size: tuple[int, ...], antialias: bool = False, offset: float = 0.,
             mode: Literal['bicubic', 'bilinear'] = 'bicubic') -> Tensor:
    """Resamples a table `(length, C)` linearly, or `(H, W, C)` by `mode`, to `(*size, C)` in its dtype.

    It interpolates with align_corners=False, in float32; a table of this size is returned unchanged. In two dimensions,
    `antialias` filters a table that shrinks; without, `offset` cells are added to each side of the new size for the
    scale.
    """
    if has_size(table, slice(-1), size):
        return table
    channels_first = table.float().movedim(-1, 0)[None]
    if offset:
        sampled = F.grid_sample(channels_first, _centers_with_offset(table, size, offset), mode='bicubic',
                                padding_mode='border', align_corners=False)
    else:
        sampled = F.interpolate(channels_first, size, mode='linear' if len(size) == 1 else mode,
                                align_corners=False, antialias=antialias)
    return sampled[0].movedim(0, -1).to(table.dtype)


def _centers_with_offset(table: Tensor, size: tuple[int, ...], offset: float) -> Tensor:
    """Returns the cell centers of a new size for `F.grid_sample`: `(1, H, W, 2)`, x and y."""
    rows, columns = (torch.full((), side, dtype=torch.float32, device=table.device) for side in size)
    # In recorded code, too, a table of the right size must stay unchanged.
    added = offset * ((rows != table.shape[0]) | (columns != table.shape[1]))
    y, x = ((2 * token_centers(length, device=table.device) + 1) / (side + added) - 1
            for length, side in zip(size, (rows, columns), strict=True))
    return torch.stack([x.expand(size[0], -1), y[:, None].expand(-1, size[1])], dim=-1)[None]
