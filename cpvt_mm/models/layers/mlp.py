"""The feed-forward network of a block."""
import torch.nn.functional as F
from torch import Tensor, nn

from ..grid import to_nchw, to_nhwc


class MLP(nn.Module):
    """Linear, exact GELU, linear.

    Args:
        embed_dims: Channels of a token.
        mlp_ratio: Width of the hidden layer in units of `embed_dims`.
        drop_rate: Dropout after either linear layer. Defaults to 0.
    """

    def __init__(self, embed_dims: int, mlp_ratio: int, drop_rate: float = 0.) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, mlp_ratio * embed_dims)
        self.fc2 = nn.Linear(mlp_ratio * embed_dims, embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., C)` -> `(..., C)`."""
        return self.drop(self.fc2(self.drop(F.gelu(self.hidden(x)))))

    def hidden(self, x: Tensor) -> Tensor:
        """`(..., C)` -> `(..., mlp_ratio * C)`, the input of GELU."""
        return self.fc1(x)


class ConvMLP(MLP):
    """Linear, zero-padded depthwise 3 x 3 convolution, exact GELU, linear (PVT v2, arXiv 2106.13797, section 3.2).

    Tokens are a grid `(B, H, W, C)`. The arguments are those of `MLP`.
    """

    def __init__(self, embed_dims: int, mlp_ratio: int, drop_rate: float = 0.) -> None:
        super().__init__(embed_dims, mlp_ratio, drop_rate)
        width = mlp_ratio * embed_dims
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def hidden(self, x: Tensor) -> Tensor:
        """`(B, H, W, C)` -> `(B, H, W, mlp_ratio * C)`, the input of GELU."""
        return to_nhwc(self.conv(to_nchw(self.fc1(x))))


MLPS = {'linear': MLP, 'conv': ConvMLP}
