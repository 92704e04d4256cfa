"""Moves the tokens of a sequence to other places: to patches, to a canvas, or to a padded batch."""
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Move(NamedTuple):
    """Moves each row of a table to at most one place of another table; the other places become zero."""
    source: Tensor  # (M,): the row of the old table in each place of the new one; N for a zero
    target: Tensor  # (N,): the place of each row of the old table; M if it has none
    has_zeros: bool
    has_losses: bool

    @classmethod
    def from_source(cls, source: Tensor, size: int, device: torch.device) -> 'Move':
        """Makes a move from its `source`, for an old table of `size` rows; both tensors go to the device."""
        target = torch.full((size + 1,), len(source)).index_copy(0, source, torch.arange(len(source)))[:size]
        has_zeros, has_losses = bool((source == size).any()), bool((target == len(source)).any())
        return cls(source.to(device, non_blocking=True), target.to(device, non_blocking=True), has_zeros, has_losses)

    @property
    def back(self) -> 'Move':
        """The way back."""
        return Move(self.target, self.source, self.has_losses, self.has_zeros)

    def __call__(self, x: Tensor) -> Tensor:
        """Moves the rows of `(1, N, C)`; returns `(1, M, C)`."""
        return _Moved.apply(x, *self)


class _Moved(torch.autograd.Function):
    """Takes rows by their places. So does its gradient, where torch's own would add them to zeros one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, target: Tensor, has_zeros: bool, has_losses: bool) -> Tensor:
        ctx.save_for_backward(source, target)
        ctx.flags = has_zeros, has_losses
        return (F.pad(x, (0, 0, 0, 1)) if has_zeros else x).index_select(1, source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return Move(*ctx.saved_tensors, *ctx.flags).back(grad), None, None, None, None
