"""How fast the machine multiplies matrices: the peak that a model's speed is a share of."""
from collections.abc import Callable, Mapping, Sequence

import torch

from cpvt_mm.models.layers.linear import linear

# As large as the fastest products need be; several, since not every machine is fastest with the largest.
SIDES = {'cpu': (1024, 2048), 'cuda': (4096, 8192)}


def products(device: str, dtype: torch.dtype) -> dict[str, tuple[int, Callable[[], object]]]:
    """Products of square matrices, by name: the operations of each, and a call; both as torch does it and as we do."""
    found = {}
    for side in SIDES[device]:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        found[f'product of {side} x {side}'] = 2 * side**3, lambda a=a, b=b: a @ b
        found[f'linear of {side} x {side}'] = 2 * side**3, lambda a=a, b=b: linear(a, b)
    return found


def peak(operations: Mapping[str, int], seconds: Mapping[str, Sequence[float]]) -> float:
    """Operations a second of the fastest of all calls; both arguments by the name of the call."""
    return max(count / min(seconds[name]) for name, count in operations.items())
