"""A bias of parabolas of the offset, whose factors are a few more channels of queries and keys."""
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.tracing import cached
from cpvt_mm.tokens.validation import check_above, check_choice, check_positive

from .base import PositionEncoding, StageSpec
from .coordinates import token_centers
from .look_here import directed_heads


@cached
def places(cells: Grid, grid: Grid, unit: int, device: torch.device) -> Tensor:
    """Returns the row and column of each cell, relative to the middle of `grid`, in tokens, `(H * W, 2)`, float32."""
    y = 2 * token_centers(cells.height, cells.cell_height, device) + 1 - grid.height
    x = 2 * token_centers(cells.width, cells.cell_width, device) + 1 - grid.width
    return torch.stack(torch.meshgrid(y, x, indexing='ij'), dim=-1).flatten(0, 1) / (2 * unit)


def powers(at: Tensor) -> Tensor:
    """Returns what a quadratic form of places `(N, 2)` is a sum of: `y * y`, `x * x`, `y * x`, y and x, `(N, 5)`."""
    y, x = at.unbind(-1)
    return torch.stack([y * y, x * x, y * x, y, x], dim=-1)


@POSITION_ENCODINGS.register_module()
class ParabolicPE(PositionEncoding):
    """Adds a sum of parabolas to each logit. They depend on the offset, and the query sets their curvature and tilt.

    This is PaPE (arXiv 2602.01418). For a query at p and a key at p', the bias is the sum over parabolas of
    `-softplus(a) * d**2 + b * d` with `d = direction . (p - p')`. Each block and head learns the directions, and a
    linear function that computes a and b from the query. The sum is one quadratic form. For any number of parabolas, it
    needs five more channels in queries and keys (six with class tokens), and no memory for each pair.

    Positions are in tokens, divided by the longer side of the grid for the backbone's `img_size`. So an offset has the
    same bias in an image of any size, and the initial values fit the grid of each stage. Positions are counted from the
    middle of the image, because larger numbers are rounded more. We do not know how the paper scales positions.

    The bias of a head starts round. Its peak is at the distance `reach` in the head's direction, and at that distance
    from the peak the bias is lower by 1. The directions of heads are those of `LookHerePE`, whose slopes divide
    `reach`; heads without a direction have their peak at the query. The directions of the parabolas start evenly
    spread. The linear function starts with constants that sum up to this bias, and with factors of the query from a
    truncated normal of std `(C / heads)**-0.5`.

    Args:
        num_parabolas: Parabolas of a head, at least 1. Defaults to 4.
        reach: Initial distance of the peak, above 0, in longer sides of the grid (middle block). Defaults to 0.25.
        trainable: False: there are no weights, and the bias stays as it starts. Defaults to True.
    """

    def __init__(self, stage: StageSpec, num_parabolas: int = 4, reach: float = 0.25, trainable: bool = True) -> None:
        super().__init__(stage)
        check_positive('num_parabolas', num_parabolas)
        check_above('reach', reach, 0)
        check_choice('trainable', trainable, (False, True))
        self.reach = reach
        self.trainable = trainable
        self.unit = max(stage.grid)
        if trainable:
            shape = stage.depth, stage.num_heads, stage.head_dims, 2 * num_parabolas
            self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=stage.head_dims**-0.5))
            directions, constants = self._initial(num_parabolas)
            self.directions = nn.Parameter(directions.to(self.weight))  # (depth, heads, parabolas, y and x)
            self.constants = nn.Parameter(constants.to(self.weight))  # (depth, heads, 1, a and b of all)

    def factors(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(q.dtype, torch.float32)
        at, key_at = (places(cells, grid, self.unit, q.device).to(dtype) for cells in (grid, key_grid))
        form = (self._learnt(q, index) if self.trainable else
                self._fixed(index).to(q.device, non_blocking=True).expand(-1, q.shape[2], -1))
        yy, xx, yx, tilt_y, tilt_x = form.to(dtype).unbind(-1)
        y, x = at.unbind(-1)
        of_query = torch.stack([-yy, -xx, -2 * yx, 2 * (yy * y + yx * x) - tilt_y, 2 * (yx * y + xx * x) - tilt_x], -1)
        of_key = powers(key_at)
        if not grid.extra:
            return of_query, of_key
        # Makes the bias of a query for its own place 0. It is the same for all cells, and extra tokens do not get it.
        constant = -(of_query * powers(at)).sum(-1, keepdim=True)
        return torch.cat([of_query, constant], -1), F.pad(of_key, (0, 1), value=1.)

    def _learnt(self, q: Tensor, index: int) -> Tensor:
        """Returns the learnt coefficients of `y * y`, `x * x`, `y * x`, y and x for each query, `(B, heads, H * W, 5)`.
        """
        numbers = q @ self.weight[index].to(q.dtype) + self.constants[index].to(q.dtype)
        steepness, tilt = numbers.chunk(2, dim=-1)
        y, x = self.directions[index].to(q.dtype).unbind(-1)
        none = torch.zeros_like(y)
        forms = torch.cat([torch.stack([y * y, x * x, y * x, none, none], -1),
                           torch.stack([none, none, none, y, x], -1)], dim=-2)
        return torch.cat([F.softplus(steepness), tilt], dim=-1) @ forms

    def _fixed(self, index: int) -> Tensor:
        """Returns the quadratic form of each head without weights, `(heads, 1, 5)`, on the CPU."""
        right, down, slopes = directed_heads(self.stage, index)
        steepness = (slopes / self.reach).square()
        tilt = -2 * slopes / self.reach  # the peak is at `reach / slope`
        return torch.stack([steepness, steepness, torch.zeros_like(slopes), tilt * down, tilt * right], -1)[:, None]

    def _initial(self, count: int) -> tuple[Tensor, Tensor]:
        """Returns directions and constants with which parabolas sum up to the forms of `_fixed`."""
        forms = torch.stack([self._fixed(index) for index in range(self.stage.depth)])
        angles = math.pi / count * torch.arange(count, dtype=torch.float32, device='cpu')
        directions = torch.stack([angles.sin(), angles.cos()], -1).expand(*forms.shape[:2], -1, -1)
        # The products of evenly spread directions with themselves sum up to count / 2 times the identity.
        steepness = 2 / count * forms[..., :1].expand(-1, -1, -1, count)
        tilt = 2 / count * forms[..., 3:] @ directions.mT
        inverse_of_softplus = steepness + torch.log(-torch.expm1(-steepness))
        return directions.clone(), torch.cat([inverse_of_softplus, tilt], dim=-1)
