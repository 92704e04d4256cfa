"""Stochastic depth."""
from torch import Tensor, nn


class DropPath(nn.Module):
    """Drops a residual branch of whole samples in training and scales the others up (arXiv 1603.09382).

    Args:
        rate: Probability that a sample's branch is dropped, in [0, 1).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """`(B, ...)` -> `(B, ...)`."""
        if not self.training or self.rate == 0.:
            return x
        keep = 1. - self.rate
        mask = x.new_empty((len(x), *[1] * (x.dim() - 1))).bernoulli_(keep)
        return x * mask.div_(keep)

    def extra_repr(self) -> str:
        return f'rate={self.rate:.3f}'
