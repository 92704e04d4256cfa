"""The feed-forward network of a block."""
import torch.nn.functional as F
from torch import Tensor, nn


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
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))
