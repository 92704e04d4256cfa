"""Frequencies for sinusoidal and rotary position encodings."""
import torch
from torch import Tensor


def frequencies(dims: int, temperature: float, device: torch.device) -> Tensor:
    """Returns `temperature**(-2 k / dims)` for k from 0 to `dims / 2 - 1` (arXiv 1706.03762, section 3.5), float32.

    They are computed in Python, so that exported graphs contain constants. Runtimes round `pow` differently, and large
    positions multiply that error.
    """
    values = torch.tensor([temperature**(-k / dims) for k in range(0, dims, 2)], dtype=torch.float32, device='cpu')
    return values.to(device, non_blocking=True)  # torch.tensor(..., device=device) would wait for a GPU
