"""The transformer block, and the position encodings after it."""
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cpvt_mm.encodings import PositionEncodings
from cpvt_mm.models.grid import Grid, is_traced

from .attention import Attention
from .mlp import MLPS

# Activation checkpointing: which parts the backward pass recomputes. None (False), the MLPs ('selective'), or whole
# blocks (True).
WithCp: TypeAlias = bool | Literal['selective']


class Block(nn.Module):
    """A transformer block: pre-norm attention and a pre-norm MLP, each in a residual branch with drop path.

    With layer scale, each branch ends with it.

    Args:
        index: Index of the block in the stage, for the position encodings.
        embed_dims: Channels of a token.
        num_heads: Number of heads; must divide `embed_dims`.
        mlp_ratio: Hidden channels of the MLP, as a multiple of `embed_dims`.
        sr_ratio: Factor by which spatial reduction shrinks each side of the key grid. Defaults to 1: no reduction.
        drop_rate: Dropout after projections. Defaults to 0.
        attn_drop_rate: Dropout of attention weights. Defaults to 0.
        drop_path_rate: Stochastic depth rate of this block. Defaults to 0.
        norm_eps: The eps of both LayerNorms. Defaults to 1e-6, as in the original.
        sr_mode: 'conv' or 'pool', see `Attention`. Defaults to 'conv'.
        mlp_mode: 'linear' for `MLP`, 'conv' for `ConvMLP`, 'swiglu' for `SwiGLU`. Defaults to 'linear'.
        layer_scale: Initial value of `LayerScale`. Defaults to None: no layer scale.
        recompute_mlp: Whether the backward pass recomputes the MLP, so that its hidden activations are not stored.
            Defaults to False.
    """

    def __init__(self, index: int, embed_dims: int, num_heads: int, mlp_ratio: int, sr_ratio: int = 1,
                 drop_rate: float = 0., attn_drop_rate: float = 0., drop_path_rate: float = 0.,
                 norm_eps: float = 1e-6, sr_mode: Literal['conv', 'pool'] = 'conv',
                 mlp_mode: Literal['linear', 'conv', 'swiglu'] = 'linear', layer_scale: float | None = None,
                 recompute_mlp: bool = False) -> None:
        super().__init__()
        self.index = index
        self.norm1 = nn.LayerNorm(embed_dims, eps=norm_eps)
        self.attn = Attention(index, embed_dims, num_heads, sr_ratio, drop_rate, attn_drop_rate, sr_mode)
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(embed_dims, layer_scale)
        self.norm2 = nn.LayerNorm(embed_dims, eps=norm_eps)
        self.mlp = MLPS[mlp_mode](embed_dims, mlp_ratio, drop_rate)
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(embed_dims, layer_scale)
        self.drop_path = DropPath(drop_path_rate)
        self.recompute_mlp = recompute_mlp

    def forward(self, x: Tensor, grid: Grid, encodings: PositionEncodings) -> Tensor:
        """Applies the block to tokens `(B, E + H * W, C)`; returns a tensor of the same shape."""
        qk = encodings.qk_tokens(x, self.index, grid)
        qks = () if qk is x else (qk,)
        x = self.drop_path(
            x, lambda x, *qk: self.ls1(self.attn(self.norm1(x), grid, encodings, *map(self.norm1, qk))), *qks)
        x = self.drop_path(x, lambda x: self.ls2(recomputed(self.mlp, self.recompute_mlp, self.norm2(x), grid)))
        return x


def run_block(block: nn.Module, index: int, encodings: PositionEncodings, x: Tensor, grid: Grid, recompute: bool,
              ) -> Tensor:
    """Runs block `index` of a stage, then the position encodings after it, on tokens `(B, E + H * W, C)` of a grid.

    With `recompute`, the backward pass recomputes the block.
    """
    x = recomputed(block, recompute, x, grid, encodings)
    return encodings.tokens(x, index, grid)  # after block 0 a PEG: x + conv(x)


def recomputed(module: nn.Module, active: bool, *args: object) -> Tensor:
    """Returns `module(*args)`; if `active`, the backward pass recomputes it with the same random numbers."""
    if not active or not torch.is_grad_enabled():
        return module(*args)
    return checkpoint(module, *args, use_reentrant=False)


class LayerScale(nn.Module):
    """Multiplies each channel by a learnt factor, which starts as `value` (CaiT, arXiv 2103.17239, section 3.1)."""

    def __init__(self, embed_dims: int, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((embed_dims,), float(value)))

    def forward(self, x: Tensor) -> Tensor:
        """Scales tokens `(B, N, C)`."""
        return x * self.gamma


class DropPath(nn.Module):
    """A residual branch with stochastic depth (arXiv 1603.09382, section 3): `x + branch(x)` in eval mode.

    Training drops the branch of random samples, and divides that of the others by the probability to keep it. A dropped
    sample is not computed: the branch runs on the kept samples only. Draws come from the CPU's generator, so that they
    never wait for a GPU. Compiled and traced code computes all samples and multiplies dropped ones by 0, because the
    number of kept samples would change its shapes.

    Args:
        rate: Probability that a sample's branch is dropped, in [0, 1).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, branch: Callable[..., Tensor], *others: Tensor) -> Tensor:
        """Adds a branch to tokens.

        Args:
            x: `(B, N, C)`.
            branch: Maps some of the samples, `(B', N, C)`, to a tensor of their shape. It must treat each sample on its
                own.
            others: More tensors `(B, ...)` that the branch gets after the tokens, of the same samples.

        Returns:
            A tensor of the shape of `x`.
        """
        if not self.training or self.rate == 0.:
            return x + branch(x, *others)
        keep = 1. - self.rate
        if is_traced(x):
            mask = x.new_empty((x.shape[0], 1, 1)).bernoulli_(keep)
            return x + branch(x, *others) * mask.div_(keep)
        kept = (torch.rand(len(x), dtype=torch.float32, device='cpu') < keep).nonzero().flatten()
        if len(kept) == len(x):
            return torch.add(x, branch(x, *others), alpha=1 / keep)
        scale = 1 / keep
        if len(kept) == 0:  # one sample with weight 0: all parameters need a gradient for DistributedDataParallel
            kept, scale = kept.new_zeros(1), 0.
        kept = kept.to(x.device, non_blocking=True)
        x, samples = _Select.apply(x, kept)
        added = branch(samples, *(tensor.index_select(0, kept) for tensor in others))
        return x.index_add(0, kept, added.to(x.dtype), alpha=scale)

    def extra_repr(self) -> str:
        return f'rate={self.rate:.3f}'


class _Select(torch.autograd.Function):
    """Returns `x` and some of its samples; the gradients of both are added in one operation, without a tensor of zeros.
    """

    @staticmethod
    def forward(x: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        return x.view_as(x), x.index_select(0, kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[1])  # here, not in forward, for torch.func

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad, grad_samples), (kept,) = grads, ctx.saved_tensors
        return grad.index_add(0, kept, grad_samples), None
