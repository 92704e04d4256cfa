"""Rotary position encodings: along two axes, and with learnt frequencies."""
import math
from typing import Literal

import torch
from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.tracing import cached
from cpvt_mm.tokens.validation import check_above, check_choice

from .base import PositionEncoding, StageSpec
from .coordinates import token_centers
from .tables import frequencies

# A head's channels are two axes times the two coordinates of points. This is the dimension of the coordinates.
COORDINATES = {'axial': -2, 'dinov3': -3}


def rotation(cells: Grid, image: Grid | None, dims: int, temperature: float, device: torch.device,
             change: Tensor | None = None) -> Tensor:
    """Returns float32 cosines and sines of `dims / 2` angles for each cell's row and column: `(2, H * W, 2, dims / 2)`.

    The `image`, the grid of the queries, spans -2 pi to 2 pi; without it, positions are counted in query tokens.
    `change`, `(2, 2)`, is what is added to the two positions, and by what their sums are multiplied.
    """
    y = token_centers(cells.height, cells.cell_height, device)
    x = token_centers(cells.width, cells.cell_width, device)
    if image is not None:
        y, x = (2 * math.pi * (2 * (places + 0.5) / side - 1) for places, side in ((y, image.height), (x, image.width)))
    places = torch.stack(torch.meshgrid(y, x, indexing='ij'), dim=-1).flatten(0, 1)
    if change is not None:
        places = (places + change[0]) * change[1]
    angles = places[..., None] * frequencies(dims, temperature, device)
    return torch.stack([angles.cos(), angles.sin()])


cached_rotation = cached(rotation)


@POSITION_ENCODINGS.register_module()
class RotaryPE(PositionEncoding):
    """Rotates queries and keys by angles proportional to their position, so that logits depend on relative positions.

    This is RoFormer's encoding (arXiv 2104.09864, section 3.2) along two axes, each with half of a head's C channels,
    which 4 must divide. A key of a reduced grid lies at the center of the tokens it covers. There are two forms:

    - 'axial': Positions are counted in tokens. In each half, channel k and channel k + C / 4 form a pair.
    - 'dinov3': Positions of token centers run from -1 to 1 over the image, times 2 pi (DINOv3, arXiv 2508.10104,
      section 3.2). Channel k and channel k + C / 2 form a pair; in each half, the row has the first C / 4. Training can
      augment positions: `shift`, `jitter` and `rescale`, for this form only, are drawn for each block.

    Args:
        temperature: Approximate ratio of the longest to the shortest period, above 1. Defaults to 100; the paper has
            10000.
        form: 'axial' or 'dinov3'. Defaults to 'axial'.
        shift: Training adds a random number from -`shift` to `shift` to the positions of each axis, which run from -1
            to 1. Defaults to 0.
        jitter: Training multiplies the positions of each axis by a random factor from 1 / `jitter` to `jitter`.
            Defaults to 1.
        rescale: Training multiplies the positions of both axes by one random factor from 1 / `rescale` to `rescale`.
            DINOv3 was trained with 2. Defaults to 1.
    """

    def __init__(self, stage: StageSpec, temperature: float = 100., form: Literal['axial', 'dinov3'] = 'axial',
                 shift: float = 0., jitter: float = 1., rescale: float = 1.) -> None:
        super().__init__(stage)
        check_head_dims(self)
        check_above('temperature', temperature, 1)
        check_choice('form', form, COORDINATES)
        for name, value, least in (('shift', shift, 0), ('jitter', jitter, 1), ('rescale', rescale, 1)):
            if value != least:
                check_above(name, value, least)
                check_choice(f'form of a RotaryPE with {name}', form, ('dinov3',))
        self.temperature = temperature
        self.form = form
        self.shift = shift
        self.jitter = jitter
        self.rescale = rescale
        self.is_augmented = (shift, jitter, rescale) != (0, 1, 1)

    def qk(self, q: Tensor, k: Tensor, index: int, grid: Grid, key_grid: Grid) -> tuple[Tensor, Tensor]:
        change = self._change(q.device) if self.training and self.is_augmented else None
        return self._rotate(q, grid, grid, change), self._rotate(k, key_grid, grid, change)

    def _change(self, device: torch.device) -> Tensor:
        """Draws what training adds to the positions of each axis, and by what it multiplies their sum: `(2, 2)`."""

        def draw(bound: float, count: int = 2) -> Tensor:
            return torch.empty(count, dtype=torch.float32, device=device).uniform_(-bound, bound)

        factor = (draw(math.log(self.jitter)) + draw(math.log(self.rescale), count=1)).exp()
        return torch.stack([2 * math.pi * draw(self.shift), factor])

    def _rotate(self, x: Tensor, cells: Grid, grid: Grid, change: Tensor | None) -> Tensor:
        """Rotates queries or keys on the grid `cells`. `grid` is the grid of the queries."""
        arguments = cells, grid if self.form == 'dinov3' else None, x.shape[-1] // 2, self.temperature, x.device
        cos_and_sin = cached_rotation(*arguments) if change is None else rotation(*arguments, change)
        dim = COORDINATES[self.form]
        first, second = x.unflatten(-1, (2, 2, -1)).unbind(dim)  # (B, heads, H * W, axes, C / 4) each
        return torch.stack(rotate(first, second, cos_and_sin), dim).flatten(-3)


def rotate(first: Tensor, second: Tensor, cos_and_sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates points with the coordinates `first` and `second` in their plane."""
    cos, sin = cos_and_sin.to(first.dtype)
    return first * cos - second * sin, first * sin + second * cos


def check_head_dims(encoding: PositionEncoding) -> None:
    """Raises a ValueError unless the channels of a head are divisible by 4."""
    stage = encoding.stage
    if stage.head_dims % 4:
        raise ValueError(f'{type(encoding).__name__} requires heads whose number of channels is a multiple of 4, but '
                         f'embed_dims {stage.embed_dims} / num_heads {stage.num_heads} is {stage.head_dims}.')


@POSITION_ENCODINGS.register_module()
class MixedRotaryPE(PositionEncoding):
    """Rotates queries and keys by angles that are learnt functions of the row and the column together.

    This is RoPE-Mixed (arXiv 2403.13298, section 3.2). In each block and head, channel k of C and channel k + C / 2
    form a pair, which turns by `f_y[k] * row + f_x[k] * column`. Positions are in tokens, as in `RotaryPE`. The vectors
    (f_y, f_x) start at its lengths, in two directions at a right angle that are random for each head.

    Args:
        temperature: Approximate ratio of the longest to the shortest initial period, above 1. Defaults to 10, as in the
            original.
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
