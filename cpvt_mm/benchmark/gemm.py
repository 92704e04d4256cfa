"""How fast the machine multiplies matrices: the peak that a model's speed is a share of."""
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F

# As large as the fastest products need be; several, since not every machine is fastest with the largest.
SIDES = {'cpu': (1024, 2048), 'cuda': (4096, 8192)}


def products(device: str, dtype: torch.dtype) -> dict[str, tuple[int, Callable[[], object]]]:
    """Makes products of square matrices, each as a matrix product and as a convolution, which other kernels compute.

    Returns:
        Operations of a product, and a call that computes it, by name.
    """
    found: dict[str, tuple[int, Callable[[], object]]] = {}
    for side in SIDES[device]:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        found[f'product of {side} x {side}'] = 2 * side**3, partial(torch.mm, b, a)
        image, weight = a[None, :, :, None], b[:, :, None, None]  # channels x pixels, and a kernel of one pixel
        found[f'convolution of {side} x {side}'] = 2 * side**3, partial(F.conv2d, image, weight)
    return found


def peak(operations: Mapping[str, int], seconds: Mapping[str, Sequence[float]]) -> float:
    """Returns operations a second of the fastest of all calls; both arguments are by the name of the call."""
    return max(count / min(seconds[name]) for name, count in operations.items())
