"""The feed-forward network of a block."""
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.models.grid import Grid, round_up, to_map, to_tokens


class MLP(nn.Module):
    """A linear layer, exact GELU, and a second linear layer.

    Args:
        embed_dims: Channels of a token.
        mlp_ratio: Hidden channels, as a multiple of `embed_dims`.
        drop_rate: Dropout after GELU and after the second linear layer. Defaults to 0.
    """

    def __init__(self, embed_dims: int, mlp_ratio: int, drop_rate: float = 0.) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, mlp_ratio * embed_dims)
        self.fc2 = nn.Linear(mlp_ratio * embed_dims, embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Applies the MLP to tokens, `(B, E + H * W, C)`; returns a tensor of the same shape."""
        return self.drop(self.fc2(self.drop(self.hidden(x, grid))))

    def hidden(self, x: Tensor, grid: Grid) -> Tensor:
        """Computes the input of the second linear layer: `(B, E + H * W, C)` -> `(B, E + H * W, hidden channels)`."""
        return F.gelu(self.fc1(x))


class ConvMLP(MLP):
    """An MLP with a zero-padded depthwise 3 x 3 convolution before GELU (PVT v2, arXiv 2106.13797, section 3.2).

    There must be no extra tokens. The arguments are those of `MLP`.
    """

    def __init__(self, embed_dims: int, mlp_ratio: int, drop_rate: float = 0.) -> None:
        super().__init__(embed_dims, mlp_ratio, drop_rate)
        width = mlp_ratio * embed_dims
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def hidden(self, x: Tensor, grid: Grid) -> Tensor:
        return F.gelu(to_tokens(self.conv(to_map(self.fc1(x), grid))))


class SwiGLU(MLP):
    """An MLP with a gate: `fc2(silu(g) * h)`, where `fc1` computes g and h (arXiv 2002.05202, section 2).

    It has two thirds of the hidden channels of `MLP`, rounded up to a multiple of 8, so that it has as many parameters.
    This is the rule of DINOv2 giant and DINOv3. The arguments are those of `MLP`.
    """

    def __init__(self, embed_dims: int, mlp_ratio: int, drop_rate: float = 0.) -> None:
        super().__init__(embed_dims, mlp_ratio, drop_rate)
        width = round_up(mlp_ratio * embed_dims * 2 // 3, 8)
        self.fc1 = nn.Linear(embed_dims, 2 * width)
        self.fc2 = nn.Linear(width, embed_dims)

    def hidden(self, x: Tensor, grid: Grid) -> Tensor:
        gate, hidden = self.fc1(x).chunk(2, dim=-1)
        return F.silu(gate) * hidden


MLPS = {'linear': MLP, 'conv': ConvMLP, 'swiglu': SwiGLU}
