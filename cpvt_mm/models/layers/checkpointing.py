"""Activation checkpointing: training saves memory by a second forward pass of parts of the model."""
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# Which parts are recomputed: none (False), the MLPs ('selective'), or whole blocks (True).
WithCp: TypeAlias = bool | Literal['selective']


def recomputed(module: nn.Module, active: bool, *args: object) -> Tensor:
    """Returns `module(*args)`; if `active`, the backward pass recomputes it with the same random numbers."""
    if not active or not torch.is_grad_enabled():
        return module(*args)
    return checkpoint(module, *args, use_reentrant=False)
