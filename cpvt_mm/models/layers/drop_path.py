"""Stochastic depth."""
from torch import Tensor, nn


class DropPath(nn.Module):
    """Stochastic depth (arXiv 1603.09382): training drops a residual branch of random samples and scales up the others.

    Args:
        rate: Probability that a sample's branch is dropped, in [0, 1).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the shape of `x`, `(B, ...)`; `x` itself in eval mode or for a rate of 0."""
        if not self.training or self.rate == 0.:
            return x
        keep = 1. - self.rate
        mask = x.new_empty((len(x), *[1] * (x.dim() - 1))).bernoulli_(keep)
        return x * mask.div_(keep)

    def extra_repr(self) -> str:
        return f'rate={self.rate:.3f}'
