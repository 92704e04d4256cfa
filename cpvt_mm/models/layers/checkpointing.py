"""Activation checkpointing: less memory in training for a second forward pass of a part."""
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# Which parts compute again: none, the MLPs, or whole blocks.
WithCp: TypeAlias = bool | Literal['selective']


def recomputed(module: nn.Module, active: bool, *args: object) -> Tensor:
    """`module(*args)`; if `active`, the backward pass computes it again, with the same random numbers."""
    if not active or not torch.is_grad_enabled():
        return module(*args)
    return checkpoint(module, *args, use_reentrant=False)
