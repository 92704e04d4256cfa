"""Gradients of pure functions, and the precision in which they run."""
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def full(tensor: Tensor) -> Tensor:
    """Returns a tensor of half precision in float32: torchvision has no kernels for bfloat16."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def fill_gradients(targets: Sequence[Tensor], function: Callable[..., Tensor], inputs: Sequence[Tensor],
                   grad_output: Tensor) -> None:
    """Adds to `targets`, which mmcv filled with zeros, the gradients of `(function(*inputs) * grad_output).sum()`.

    An input that the function does not use, as no offsets or no regions, has none.
    """
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    with torch.enable_grad():
        output = function(*leaves)
    if not output.requires_grad:
        return
    grads = torch.autograd.grad(output, leaves, grad_output.to(output.dtype), allow_unused=True)
    for target, grad in zip(targets, grads, strict=True):
        if grad is not None:
            target.add_(grad)
