"""LookHere: a fixed bias of the logits that restricts heads to one direction."""
import math

import torch
from torch import Tensor

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.validation import check_above

from .base import StageSpec
from .offset_bias import OffsetBias

# In degrees, clockwise from upwards. Opposite directions follow each other, so two heads cover both.
DIRECTIONS = (0, 180, 90, 270, 45, 225, 135, 315)
# Slopes for the heads that attend to all keys.
FAR_SLOPES = (1 / 2, 1 / 8, 1 / 32, 1 / 128)


def directed_heads(stage: StageSpec, index: int) -> Tensor:
    """Returns LookHere's direction of each head, to the right and down, and its slope in block `index`: `(3, heads)`.

    It is on the CPU in float32. A head that attends to all keys has the direction (0, 0).
    """
    count = stage.num_heads - stage.num_heads // 3
    slope = 1.5 - index / max(stage.depth - 1, 1)
    degrees = [DIRECTIONS[(index * count + head) % len(DIRECTIONS)] for head in range(count)]
    heads = [(math.sin(math.radians(degree)), -math.cos(math.radians(degree)), slope) for degree in degrees]
    heads += [(0., 0., slope * FAR_SLOPES[head % len(FAR_SLOPES)]) for head in range(stage.num_heads - count)]
    return torch.tensor(heads, dtype=torch.float32, device='cpu').T


@POSITION_ENCODINGS.register_module()
class LookHerePE(OffsetBias):
    """Adds a fixed bias that restricts most heads to one direction, and favours near keys (LookHere, arXiv 2405.13985).

    It has no weights. A third of the heads, rounded down, attend to all keys. Each of the other heads attends to the
    key whose cell contains the query, and to the keys in a field of view (section 3). The fields point up, down, right
    and left, and then along the diagonals. If a block has fewer than eight such heads, the next block continues with
    the next directions.

    The bias is minus the distance, multiplied by two slopes. The slope of a block falls from 1.5 in the first to 0.5 in
    the last. The slope of a head is 1 with a field of view, and 1/2, 1/8, 1/32 and 1/128 in turns without, as in the
    authors' code. Distances are in cells of the key grid: in tokens, they would be so large on reduced grids that most
    keys would have almost no weight. The bias needs memory for every pair of query and key. Attention stays fused.

    Args:
        fov: The field of view, in degrees, above 0; 360 contains all keys. Defaults to 90, as in the paper's LH-90.
        slope: A factor of all slopes, above 0, in logits per key cell. Defaults to 1.
    """

    def __init__(self, stage: StageSpec, fov: float = 90., slope: float = 1.) -> None:
        super().__init__(stage)
        check_above('fov', fov, 0)
        check_above('slope', slope, 0)
        self.fov = fov
        self.slope = slope

    def table(self, index: int, rows: Tensor, columns: Tensor, grid: Grid, key_grid: Grid) -> Tensor:
        y, x = rows[:, None], columns  # a key above the query has a negative y
        heads = directed_heads(self.stage, index).to(x.device, non_blocking=True)
        right, down, slopes = heads[..., None, None]
        # The small tolerance includes keys on the border of the field of view, despite rounding.
        narrowest = math.cos(math.radians(min(self.fov, 360) / 2)) - 1e-3
        is_seen = right * x + down * y >= narrowest * (y.square() + x.square()).sqrt()
        covers_query = (y.abs() <= key_grid.cell_height / 2 + 1e-3) & (x.abs() <= key_grid.cell_width / 2 + 1e-3)
        distances = ((y / key_grid.cell_height).square() + (x / key_grid.cell_width).square()).sqrt()
        # The heads that attend to all keys have the direction (0, 0).
        is_masked = ~(is_seen | covers_query | ((right == 0) & (down == 0)))
        return (-self.slope * slopes * distances).masked_fill(is_masked, -math.inf)
