"""Two layers after one another on a CPU, a few tokens at a time."""
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.grad import conv2d_weight

from .linear import as_row, linear

# Numbers of the widest layer that a thread is given at a time: 2 MiB in float32, which stay in the cache.
NUMBERS_PER_THREAD = 2**19
# With fewer rows matrix products are slow, however wide they are.
LEAST_ROWS = 512


def rows_of_band(width: int) -> int:
    """Tokens in a band of a function whose widest layer has `width` numbers per token."""
    return max(NUMBERS_PER_THREAD * torch.get_num_threads() // width, LEAST_ROWS)


def lean_linear(inner: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None,
                *parameters: Tensor) -> Tensor:
    """`linear(inner(x, *parameters), weight, bias)`, of which the backward pass keeps but the arguments.

    Both passes go by bands of tokens, the backward pass computes `inner` again. What is between the layers stays in the
    cache: memory of this size that is got from the system anew for each tensor costs as much as to compute what is
    written there (docs/performance.md). For tensors where `on_cpu` holds.

    Args:
        inner: `(n, C)` and `parameters` -> `(n, width)` for any n; treats every token alone, without randomness.
        x: `(..., C)`.
        weight: `(C', width)`.
        bias: `(C',)` or None.
        parameters: What else `inner` has gradients for.

    Returns:
        `(..., C')`. Its gradients have none: to differentiate twice raises a RuntimeError.
    """
    return _LeanLinear.apply(inner, x.flatten(0, -2), weight, bias, *parameters).unflatten(0, x.shape[:-1])


class _LeanLinear(torch.autograd.Function):
    # One node for all bands: those of a band each would stay until the backward pass, and scatter over the memory that
    # the bands before have left, so that it fits no other band.

    @staticmethod
    def forward(ctx: FunctionCtx, inner: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None,
                *parameters: Tensor) -> Tensor:
        ctx.inner = inner
        ctx.save_for_backward(x, weight, *parameters)
        bands = x.split(rows_of_band(weight.shape[1]))
        outs = [linear(inner(band, *parameters), weight, bias) for band in bands]
        return torch.cat(outs) if len(outs) > 1 else outs[0]

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError('A gradient of this backbone on a CPU cannot be differentiated again: compute it in '
                               'float64, or without create_graph.')
        x, weight, *parameters = ctx.saved_tensors
        _, needs_x, needs_weight, needs_bias, *need_others = ctx.needs_input_grad
        transposed, rows = weight.t().contiguous(), rows_of_band(weight.shape[1])
        grad_x = torch.empty_like(x) if needs_x else None
        grad_weight = torch.zeros_like(weight) if needs_weight else None
        others = [torch.zeros_like(tensor) if needed else None
                  for tensor, needed in zip(parameters, need_others, strict=True)]
        for start in range(0, len(x), rows):
            band = slice(start, start + rows)
            with torch.enable_grad():
                tokens = x[band].detach().requires_grad_(needs_x)
                leaves = [tensor.detach().requires_grad_(needed)
                          for tensor, needed in zip(parameters, need_others, strict=True)]
                hidden = ctx.inner(tokens, *leaves)
            if hidden.requires_grad:
                hidden.backward(linear(grad[band], transposed))
            if grad_x is not None:
                grad_x[band] = tokens.grad
            if grad_weight is not None:
                shape = (*weight.shape, 1, 1)
                grad_weight += conv2d_weight(as_row(hidden.detach()), shape, as_row(grad[band])).flatten(1)
            for total, leaf in zip(others, leaves, strict=True):
                if total is not None:
                    total += leaf.grad
        return None, grad_x, grad_weight, grad.sum(dim=0) if needs_bias else None, *others
