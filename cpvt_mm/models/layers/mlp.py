"""The feed-forward network of a block."""
import torch.nn.functional as F
from torch import Tensor, nn

from ..grid import to_nchw, to_nhwc


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

    def forward(self, x: Tensor) -> Tensor:
        """Applies the MLP: `(..., C)` -> `(..., C)`."""
        return self.drop(self.fc2(self.drop(F.gelu(self.hidden(x)))))

    def hidden(self, x: Tensor) -> Tensor:
        """Computes the input of GELU: `(..., C)` -> `(..., mlp_ratio * C)`."""
        return self.fc1(x)


class ConvMLP(MLP):
    """An MLP with a zero-padded depthwise 3 x 3 convolution before GELU (PVT v2, arXiv 2106.13797, section 3.2).

    It needs tokens in a grid, `(B, H, W, C)`. The arguments are those of `MLP`.
    """

    def __init__(self, embed_dims: int, mlp_ratio: int, drop_rate: float = 0.) -> None:
        super().__init__(embed_dims, mlp_ratio, drop_rate)
        width = mlp_ratio * embed_dims
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def hidden(self, x: Tensor) -> Tensor:
        """Computes the input of GELU: `(B, H, W, C)` -> `(B, H, W, mlp_ratio * C)`."""
        return to_nhwc(self.conv(to_nchw(self.fc1(x))))


MLPS = {'linear': MLP, 'conv': ConvMLP}
