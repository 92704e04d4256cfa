"""Stochastic depth and activation checkpointing, which a block does in training only."""
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cpvt_mm.tokens.packing import Layout
from cpvt_mm.tokens.tracing import is_traced

# Activation checkpointing: which parts the backward pass recomputes. None (False), the MLPs ('selective'), or whole
# blocks (True).
WithCp: TypeAlias = bool | Literal['selective']


def residual(x: Tensor, branch: Callable[[Tensor, Layout], Tensor], grid: Layout, drop_path: float) -> Tensor:
    """Returns `x + branch(x, grid)`; stochastic depth (arXiv 1603.09382, section 3) drops the branch of random images.

    `drop_path` is the probability. The branch runs on the kept images, or clips, only. They are drawn on the CPU, which
    waits for no GPU. If none is kept, it runs on all and counts 0 times: DistributedDataParallel waits for gradients.
    Traced code, which no number may change, runs it on all, too.
    """
    keep = 1. - drop_path
    if is_traced(x):
        return x + branch(x, grid) * grid.draw(x, keep)
    drawn = torch.rand(grid.count(x), dtype=torch.float32, device='cpu').tolist()
    kept = [clip for clip, number in enumerate(drawn) if number < keep]
    if len(kept) in (0, len(drawn)):
        return torch.add(x, branch(x, grid), alpha=bool(kept) / keep)
    dim, places, part = grid.part(kept)
    places = places.to(x.device, non_blocking=True)
    return x.index_add(dim, places, branch(x.index_select(dim, places), part).to(x.dtype), alpha=1 / keep)


def recomputed(function: Callable[..., Tensor], *args: object) -> Tensor:
    """Returns `function(*args)`, which the backward pass recomputes with the same random numbers."""
    return checkpoint(function, *args, use_reentrant=False) if torch.is_grad_enabled() else function(*args)
