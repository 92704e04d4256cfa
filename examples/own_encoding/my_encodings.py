import torch
from torch import Tensor, nn

from cpvt_mm import POSITION_ENCODINGS, PositionEncoding, StageSpec
from cpvt_mm.tokens.grid import Grid


@POSITION_ENCODINGS.register_module()
class RowPE(PositionEncoding):
    """Adds a learnt vector, times the row, before the first block."""

    def __init__(self, stage: StageSpec, scale: float = 1.) -> None:
        super().__init__(stage)
        self.scale = scale
        self.vector = nn.Parameter(torch.zeros(stage.embed_dims))

    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        """Encodes tokens `(B, H * W, C)`."""
        if position != -1:
            return x
        rows = torch.arange(grid.height, device=x.device, dtype=x.dtype) * self.scale / grid.height
        return x + rows.repeat_interleave(grid.width)[:, None] * self.vector
