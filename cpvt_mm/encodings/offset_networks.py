"""Biases of the logits that a small network computes from the offset of the key: Swin V2 and FIRE."""
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.validation import check_above

from .base import StageSpec
from .offset_bias import OffsetBias


class OffsetMLP(nn.Module):
    """Two linear layers with a ReLU between them, from the coordinates of an offset to one value for each head. `bias`
    is the bias of the second layer.
    """

    def __init__(self, hidden_dims: int, num_heads: int, bias: bool) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, num_heads, bias)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """Computes a table for all pairs of a row coordinate `(R,)` and a column coordinate `(C,)`: `(heads, R, C)`."""
        points = torch.stack([y[:, None].expand(-1, len(x)), x.expand(len(y), -1)], dim=-1)
        return self.fc2(F.relu(self.fc1(points.to(self.fc1.weight.dtype)))).movedim(-1, 0)


@POSITION_ENCODINGS.register_module()
class ContinuousRelativePE(OffsetBias):
    """Adds a bias to each logit. A small network computes the bias from the offset of the key on a logarithmic scale.

    This is the bias of Swin Transformer V2 (arXiv 2111.09883, section 3.3), for whole grids: `16 * sigmoid(MLP(y, x))`.
    With d an offset in query tokens along one axis, divided by the largest offset for an image of the backbone's
    `img_size`, the coordinate is `sign(d) * log2(1 + 8 * |d|) / log2(8)`. Set `img_size` to the size of images in
    training.
    Each block has an MLP of two linear layers, of std 0.02 as in the original code. The bias needs memory for every
    pair of query and key.

    Args:
        hidden_dims: Hidden channels of the MLP. Defaults to 512, as in the original code.
    """

    def __init__(self, stage: StageSpec, hidden_dims: int = 512) -> None:
        super().__init__(stage)
        self.blocks = nn.ModuleList(OffsetMLP(hidden_dims, stage.num_heads, bias=False) for _ in range(stage.depth))

    def table(self, index: int, rows: Tensor, columns: Tensor, grid: Grid, key_grid: Grid) -> Tensor:
        y, x = (distances.sign() * torch.log1p(8 / max(side - 1, 1) * distances.abs()) / math.log(8)
                for distances, side in zip((rows, columns), self.stage.grid, strict=True))
        return 16 * self.blocks[index](y, x).sigmoid()


@POSITION_ENCODINGS.register_module()
class FirePE(OffsetBias):
    """Adds a bias to each logit. A small network computes it from the offset of the key relative to the image size.

    This is FIRE (arXiv 2310.04418, section 3) along two axes. With d the offset along an axis, in query tokens, and n
    the query tokens along it, the coordinate is `sign(d) * log(1 + c * |d|) / log(1 + c * max(L, n))`, and the bias is
    `MLP(y, x)`. In the paper, n is the position of the query, and there is no sign, because text has one direction.

    Each block learns c, L of each axis, and an MLP of two linear layers. L starts at the side of the grid for an image
    of the backbone's `img_size`, which you should set to the size of images in training: longer sides are interpolated.
    The bias needs memory for every pair of query and key.

    Args:
        hidden_dims: Hidden channels of the MLP. Defaults to 32, as in the paper.
        scale: Initial value of c, per token, above 0. Defaults to 0.1, as in the paper.
    """

    def __init__(self, stage: StageSpec, hidden_dims: int = 32, scale: float = 0.1) -> None:
        super().__init__(stage)
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
        coordinates = []
        for distances, threshold, side in zip((rows, columns), self.threshold, (grid.height, grid.width), strict=True):
            scale = self.scale.float().abs()  # a distance must not become negative
            tokens = torch.full((), side, dtype=torch.float32, device=rows.device)
            longest = torch.maximum(threshold.float().abs(), tokens)
            # 1e-6 as in the paper's code: c may become 0.
            coordinates.append(distances.sign() * torch.log1p(scale * distances.abs())
                               / (torch.log1p(scale * longest) + 1e-6))
        return self.mlp(*coordinates)
