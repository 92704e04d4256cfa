"""Functional interpolation for relative positions."""
import torch
from torch import Tensor, nn

from cpvt_mm.models.grid import Grid
from cpvt_mm.models.validation import check_above, check_positive
from cpvt_mm.registry import POSITION_ENCODINGS

from .base import StageSpec
from .offsets import OffsetBias, OffsetMLP


@POSITION_ENCODINGS.register_module()
class FirePE(OffsetBias):
    """Adds to a logit what a small network computes from the offset of the key, relative to the size of the image.

    This is FIRE (arXiv 2310.04418, section 3) along two axes. With d the offset along an axis, in query tokens, and n
    the query tokens along it, the coordinate is `sign(d) * log(1 + c * |d|) / log(1 + c * max(L, n))`, and the bias is
    `MLP(y, x)`. So positions are interpolated along a side of more than L tokens.
    The paper's text is read in one direction; here n, the same for all queries, takes the place of a query's position,
    and d has a sign. Other forms in two dimensions are possible, such as a bias of the distance alone.

    Each block learns c, L of each axis, and an MLP of two linear layers. c starts at `scale`, L at the side of the grid
    for an image of the backbone's `img_size`. Set that to the size of the training: then longer sides are interpolated,
    and shorter ones are not. The MLP starts from torch's own initial values, as in the paper's code.

    The bias needs memory for every pair of query and key.

    Args:
        stage: The blocks it is for.
        hidden_dims: Hidden channels of the MLP. Defaults to 32, as in the paper.
        scale: Initial value of c, per token. Defaults to 0.1, as in the paper.

    Raises:
        ValueError: If `hidden_dims` is not an int of at least 1, or `scale` is not above 0.
    """

    def __init__(self, stage: StageSpec, hidden_dims: int = 32, scale: float = 0.1) -> None:
        super().__init__(stage)
        check_positive('hidden_dims', hidden_dims)
        check_above('scale', scale, 0)
        self.blocks = nn.ModuleList(_Fire(hidden_dims, stage.num_heads, scale, stage.grid)
                                    for _ in range(stage.depth))

    def table(self, index: int, rows: Tensor, columns: Tensor, grid: Grid, key_grid: Grid) -> Tensor:
        return self.blocks[index](rows, columns, grid)

    def init_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()


class _Fire(nn.Module):
    """The function of one block."""

    def __init__(self, hidden_dims: int, num_heads: int, scale: float, grid: tuple[int, int]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.threshold = nn.Parameter(torch.tensor(grid, dtype=self.scale.dtype))
        self.mlp = OffsetMLP(hidden_dims, num_heads, bias=True)

    def forward(self, rows: Tensor, columns: Tensor, grid: Grid) -> Tensor:
        rows_threshold, columns_threshold = self.threshold
        return self.mlp(self._coordinates(rows, rows_threshold, grid.height),
                        self._coordinates(columns, columns_threshold, grid.width))

    def _coordinates(self, offsets: Tensor, threshold: Tensor, side: int) -> Tensor:
        scale = self.scale.float().abs()  # a distance must not become negative
        tokens = torch.full((), side, dtype=torch.float32, device=offsets.device)
        longest = torch.maximum(threshold.float().abs(), tokens)
        # 1e-6 as in the paper's code: c may become 0.
        return offsets.sign() * torch.log1p(scale * offsets.abs()) / (torch.log1p(scale * longest) + 1e-6)
