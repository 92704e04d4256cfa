"""Measures the peak speed of matrix products on the machine, as a reference for the speed of models."""
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F

# Sides of the matrices. There are several, because the largest one is not the fastest on every machine.
SIDES = {'cpu': (1024, 2048), 'cuda': (4096, 8192)}


def products(device: str, dtype: torch.dtype) -> dict[str, tuple[int, Callable[[], object]]]:
    """Makes products of square matrices, each as a matrix product and as a convolution, which use different kernels.

    Returns:
        Name -> number of operations, and a function that computes the product.
    """
    found: dict[str, tuple[int, Callable[[], object]]] = {}
    for side in SIDES[device]:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        found[f'product of {side} x {side}'] = 2 * side**3, partial(torch.mm, b, a)
        image, weight = a[None, :, :, None], b[:, :, None, None]  # channels x pixels, and a kernel of one pixel
        found[f'convolution of {side} x {side}'] = 2 * side**3, partial(F.conv2d, image, weight)
    return found


def peak(operations: Mapping[str, int], seconds: Mapping[str, Sequence[float]]) -> float:
    """Returns the operations per second of the fastest call; both arguments are dicts by the name of the call."""
    return max(count / min(seconds[name]) for name, count in operations.items())
