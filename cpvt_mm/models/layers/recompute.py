"""Computing things twice to save memory."""
from collections.abc import Callable
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

Result = TypeVar('Result')


def recomputed(function: Callable[..., Result], *args: object) -> Result:
    """`function(*args)`, of which the backward pass keeps nothing but `args`: it computes the rest again, as far as the
    last layer that needs its input. What `function` draws at random is the same again.
    """
    return checkpoint(function, *args, use_reentrant=False) if torch.is_grad_enabled() else function(*args)
