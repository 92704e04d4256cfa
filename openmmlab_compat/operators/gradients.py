"""Gradients of pure functions, and the precision in which they run."""
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def full(tensor: Tensor) -> Tensor:
    """Returns a tensor of half precision in float32: torchvision has no kernels for bfloat16."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def fill_gradients(targets: Sequence[Tensor], function: Callable[..., Tensor], inputs: Sequence[Tensor],
                   grad_output: Tensor) -> None:
    """Adds to `targets`, which mmcv filled with zeros, the gradients of `(function(*inputs) * grad_output).sum()`."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    with torch.enable_grad():
        output = function(*leaves)
    for target, grad in zip(targets, torch.autograd.grad(output, leaves, grad_output.to(output.dtype)), strict=True):
        target.add_(grad)
