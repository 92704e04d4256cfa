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
    if offset:
        return _resample_with_offset(table.float(), size, offset).to(table.dtype)
    sampled = F.interpolate(table.float().movedim(-1, 0)[None], size, mode='linear' if len(size) == 1 else mode,
                            align_corners=False, antialias=antialias)
    return sampled[0].movedim(0, -1).to(table.dtype)


def _resample_with_offset(table: Tensor, size: tuple[int, ...], offset: float) -> Tensor:
    """Resamples `(H, W, C)` to `(*size, C)`, bicubically, as if the new size had `offset` more cells on each side.

    `F.grid_sample` with `padding_mode='border'` computes the same, but is slower, and failed on some devices.
    """
    sides = [torch.full((), side, dtype=torch.float32, device=table.device) for side in size]
    # In recorded code, too, a table of the right size must stay unchanged.
    added = offset * ((sides[0] != table.shape[0]) | (sides[1] != table.shape[1]))
    rows, columns = (cubic_weights(token_centers(count, length / (side + added), table.device), length)
                     for count, length, side in zip(size, table.shape[:2], sides, strict=True))
    return columns @ (rows @ table.flatten(1)).unflatten(1, table.shape[1:])


def cubic_weights(places: Tensor, length: int) -> Tensor:
    """Returns the weights of the cells along an axis that interpolate values between them, `(N, length)`.

    The interpolation is cubic convolution (Keys 1981) with a = -0.75, as in torch. `places` `(N,)` are the positions of
    the values, in cells from the center of the first cell. Beyond the border, the last cell is repeated.
    """
    a, start = -0.75, places.floor()
    cells = start + torch.arange(-1, 3, device=places.device)[:, None]
    distance = (places - cells).abs()
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    weights = torch.where(distance < 1, near, far)
    is_cell = cells.clamp(0, length - 1)[..., None] == torch.arange(length, device=places.device)
    return (weights[..., None] * is_cell).sum(0)
