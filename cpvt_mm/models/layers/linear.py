"""Matrix products of tokens with weights."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..grid import is_traced, to_nchw, to_nhwc


def on_cpu(x: Tensor) -> bool:
    """Whether to take what is faster on a CPU: for float32, in eager mode, and if there is anything to do."""
    return (x.is_cpu and x.dtype == torch.float32 and x.numel() > 0 and not is_traced()
            and not torch.is_autocast_enabled('cpu') and torch.backends.mkldnn.is_available()
            and torch.backends.mkldnn.enabled)


def as_row(x: Tensor) -> Tensor:
    """`(..., C)` -> `(1, C, 1, tokens)`, channels-last in memory."""
    return to_nchw(x.reshape(1, 1, -1, x.shape[-1]))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, on a CPU as a 1x1 convolution.

    Torch gives convolutions to oneDNN and matrix products to MKL, which on processors of AMD is half as fast
    (docs/performance.md).

    Args:
        x: `(..., C)`.
        weight: `(C', C)`.
        bias: `(C',)`. Defaults to None.

    Returns:
        `(..., C')`.
    """
    if not on_cpu(x):
        return F.linear(x, weight, bias)
    return to_nhwc(F.conv2d(as_row(x), weight[..., None, None], bias)).reshape(*x.shape[:-1], len(weight))


class Linear(nn.Linear):
    """`nn.Linear` by way of `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in_features)` -> `(..., out_features)`."""
        return linear(x, self.weight, self.bias)
