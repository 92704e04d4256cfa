"""The feed-forward network of a block."""
import torch.nn.functional as F
from torch import Tensor, nn

from ..grid import Grid, to_map, to_tokens


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
        return self.drop(self.fc2(self.drop(F.gelu(self.hidden(x, grid)))))

    def hidden(self, x: Tensor, grid: Grid) -> Tensor:
        """Computes the input of GELU: `(B, E + H * W, C)` -> `(B, E + H * W, mlp_ratio * C)`."""
        return self.fc1(x)


class ConvMLP(MLP):
    """An MLP with a zero-padded depthwise 3 x 3 convolution before GELU (PVT v2, arXiv 2106.13797, section 3.2).

    There must be no extra tokens. The arguments are those of `MLP`.
    """

    def __init__(self, embed_dims: int, mlp_ratio: int, drop_rate: float = 0.) -> None:
        super().__init__(embed_dims, mlp_ratio, drop_rate)
        width = mlp_ratio * embed_dims
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def hidden(self, x: Tensor, grid: Grid) -> Tensor:
        return to_tokens(self.conv(to_map(self.fc1(x), grid)))


MLPS = {'linear': MLP, 'conv': ConvMLP}
