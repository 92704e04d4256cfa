"""Doing a few tokens at a time, and cheap things twice: less memory, and less time on a CPU."""
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.grad import conv2d_weight
from torch.utils.checkpoint import checkpoint

from .linear import as_row, linear, on_cpu

Result = TypeVar('Result')

# Numbers of the widest layer that a thread is given at a time: 2 MiB in float32, which stay in the cache.
NUMBERS_PER_THREAD = 2**19
# With fewer rows matrix products are slow, however wide they are.
LEAST_ROWS = 512


def rows_of_band(width: int) -> int:
    """Tokens in a band of a function whose widest layer has `width` numbers per token."""
    return max(NUMBERS_PER_THREAD * torch.get_num_threads() // width, LEAST_ROWS)


def in_bands(function: Callable[[Tensor], Tensor], x: Tensor, width: int) -> Tensor:
    """Applies `function`, which treats every token alone, to bands of tokens on a CPU, else to all at once.

    What is between the layers of `function` then stays in the cache. Memory of this size that is got from the system
    anew for each tensor costs as much as to compute what is written there (docs/performance.md).

    Args:
        function: `(n, C)` -> `(n, C')` for any n.
        x: `(..., C)`.
        width: Numbers per token that the widest layer in `function` has.

    Returns:
        `(..., C')`.
    """
    tokens = x.flatten(0, -2)
    bands = tokens.split(rows_of_band(width)) if on_cpu(x) else [tokens]
    outs = [function(band) for band in bands]
    return (torch.cat(outs) if len(outs) > 1 else outs[0]).unflatten(0, x.shape[:-1])


def lean_linear(inner: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None,
                *parameters: Tensor) -> Tensor:
    """`linear(inner(x, *parameters), weight, bias)`, of which the backward pass keeps but the arguments.

    `inner` is computed again in the backward pass, and on a CPU in bands in both.

    Args:
        inner: `(n, C)` and `parameters` -> `(n, width)` for any n; treats every token alone, without randomness.
        x: `(..., C)`.
        weight: `(C', width)`.
        bias: `(C',)` or None.
        parameters: What else `inner` has gradients for.

    Returns:
        `(..., C')`.
    """
    if torch.compiler.is_compiling():  # the compiler itself chooses what to keep
        return linear(inner(x, *parameters), weight, bias)
    if not on_cpu(x):
        return recomputed(lambda *args: linear(inner(*args), weight, bias), x, *parameters)
    return _LeanLinear.apply(inner, x.flatten(0, -2), weight, bias, *parameters).unflatten(0, x.shape[:-1])


class _LeanLinear(torch.autograd.Function):
    # One node for all bands: those of a band each would stay until the backward pass, and scatter over the memory that
    # the bands before have left, so that it fits no other band.

    @staticmethod
    def forward(ctx: FunctionCtx, inner: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None,
                *parameters: Tensor) -> Tensor:
        ctx.inner = inner
        ctx.save_for_backward(x, weight, *parameters)
        return in_bands(lambda band: linear(inner(band, *parameters), weight, bias), x, width=weight.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Any, ...]:
        x, weight, *parameters = ctx.saved_tensors
        transposed = weight.t().contiguous()
        rows = rows_of_band(weight.shape[1])
        grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
        grad_parameters = [torch.zeros_like(parameter) for parameter in parameters]
        for band, grad_band, grad_out in zip(x.split(rows), grad_x.split(rows), grad.split(rows), strict=True):
            with torch.enable_grad():
                inputs = [tensor.detach().requires_grad_() for tensor in (band, *parameters)]
                hidden = ctx.inner(*inputs)
            grads = torch.autograd.grad(hidden, inputs, linear(grad_out, transposed))
            for total, part in zip((grad_band, *grad_parameters), grads, strict=True):
                total.add_(part) if total is not grad_band else total.copy_(part)
            grad_weight += conv2d_weight(as_row(hidden.detach()), (*weight.shape, 1, 1), as_row(grad_out))[..., 0, 0]
        grad_bias = grad.sum(dim=0) if ctx.needs_input_grad[3] else None
        return None, grad_x, grad_weight, grad_bias, *grad_parameters


def recomputed(function: Callable[..., Result], *args: object) -> Result:
    """`function(*args)`, of which the backward pass keeps nothing but `args`: it computes the rest again, as far as the
    last layer that needs its input. What `function` draws at random is the same again.
    """
    return checkpoint(function, *args, use_reentrant=False) if torch.is_grad_enabled() else function(*args)
