"""Activation checkpointing: less memory in training for a second forward pass of the blocks."""
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

WithCp: TypeAlias = bool | Literal['selective']

# The fused attention kernels of CPUs and GPUs.
ATTENTION = [
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
]


def run_block(block: nn.Module, with_cp: WithCp, *args: object) -> Tensor:
    """`block(*args)` by `torch.utils.checkpoint`.

    Args:
        block: The block.
        with_cp: What the backward pass computes again. False: nothing. 'selective': all but attention, the output of
            which is kept; with a position encoding that learns a bias, whose attention is not fused, it is as True.
            True: all. Random numbers are drawn alike both times.
        *args: Arguments of the block.
    """
    if not with_cp or not torch.is_grad_enabled():
        return block(*args)
    keep_attention = partial(create_selective_checkpoint_contexts, ATTENTION)
    return checkpoint(block, *args, use_reentrant=False,
                      context_fn=keep_attention if with_cp == 'selective' else noop_context_fn)
