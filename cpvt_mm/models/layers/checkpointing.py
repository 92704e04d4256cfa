"""Activation checkpointing: less memory in training for a second forward pass of the blocks."""
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

WithCp: TypeAlias = bool | Literal['selective']

aten = torch.ops.aten
# The fused attention kernels of CPUs and GPUs, and the convolutions of the spatial reduction.
KEPT = (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten.convolution.default,
)


def keep_attention(ctx: SelectiveCheckpointContext, op: object, *args: Tensor, **kwargs: object) -> CheckpointPolicy:
    """Keeps the outputs of attention and of its linear layers; those of the MLP, norms and activations are not kept."""
    if op is aten.addmm.default:
        inputs, outputs = args[2].shape
        kept = inputs <= outputs <= 2 * inputs  # the MLP's layers widen and narrow the tokens by more
    else:
        kept = op in KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def run_block(block: nn.Module, with_cp: WithCp, *args: object) -> Tensor:
    """`block(*args)` by `torch.utils.checkpoint`.

    Args:
        block: The block.
        with_cp: What the backward pass computes again. False: nothing. 'selective': all but attention and its linear
            layers, so mainly the MLP. True: all. Random numbers are drawn alike both times.
        *args: Arguments of the block.
    """
    if not with_cp or not torch.is_grad_enabled():
        return block(*args)
    selective = partial(create_selective_checkpoint_contexts, keep_attention)
    return checkpoint(block, *args, use_reentrant=False,
                      context_fn=selective if with_cp == 'selective' else noop_context_fn)
