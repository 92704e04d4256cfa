"""The transformer block of Twins-PCPVT (arXiv 2104.13840, section 3.1), with attention of PVT (arXiv 2102.12122)."""
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cpvt_mm.encodings.base import PositionEncodings
from cpvt_mm.tokens.grid import round_up
from cpvt_mm.tokens.packing import Layout, Packing, attend, convolve

from .embeddings import PatchEmbed, PoolReduction

# Activation checkpointing: which parts the backward pass recomputes. None (False), the MLPs ('selective'), or whole
# blocks (True).
WithCp: TypeAlias = bool | Literal['selective']


@dataclass(frozen=True)
class BlockSpec:
    """The options that all blocks of a stage share."""
    embed_dims: int  # channels of a token, C
    num_heads: int  # divides `embed_dims`
    mlp_ratio: int  # hidden channels of the MLP, as a multiple of `embed_dims`
    sr_ratio: int = 1  # by which spatial reduction shrinks each side of the key grid; 1: no reduction
    sr_mode: Literal['conv', 'pool'] = 'conv'  # reduction by `sr_ratio`, or to 7 x 7 cells
    mlp_mode: Literal['linear', 'conv', 'relu-conv', 'swiglu'] = 'linear'  # see `MLPS`
    layer_scale: float | None = None  # initial value of `LayerScale`; None: no layer scale
    norm_eps: float = 1e-6  # of the LayerNorms before attention and MLP
    embed_norm_eps: float = 1e-5  # of the LayerNorms in patch embeddings and spatial reduction
    drop_rate: float = 0.  # dropout after projections
    attn_drop_rate: float = 0.  # dropout of attention weights
    with_cp: WithCp = False


class Block(nn.Module):
    """Pre-norm attention and a pre-norm MLP, each in a residual branch; position encodings know its `index`."""

    def __init__(self, index: int, spec: BlockSpec, drop_path_rate: float = 0.) -> None:
        super().__init__()
        self.index = index
        self.norm1 = nn.LayerNorm(spec.embed_dims, eps=spec.norm_eps)
        self.attn = Attention(index, spec)
        self.ls1 = nn.Identity() if spec.layer_scale is None else LayerScale(spec.embed_dims, spec.layer_scale)
        self.norm2 = nn.LayerNorm(spec.embed_dims, eps=spec.norm_eps)
        self.mlp = MLPS[spec.mlp_mode](spec)
        self.ls2 = nn.Identity() if spec.layer_scale is None else LayerScale(spec.embed_dims, spec.layer_scale)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor, grid: Layout, encodings: PositionEncodings) -> Tensor:
        """Applies the block to tokens, `(B, E + H * W, C)` or packed ones `(1, T, C)`; keeps the shape."""
        qk = encodings.qk_tokens(x, self.index, grid)  # `x` itself, unless a PEG is for queries and keys only
        normed_qk = None if qk is x else self.norm1(qk)
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x), grid, encodings, normed_qk)), grid)
        x = x + self.drop_path(self.ls2(self.mlp(self.norm2(x), grid)), grid)
        return x


class Projected(NamedTuple):
    """The inputs of attention. E extra tokens precede the cells of each grid. Packed images are one sequence, B = 1."""
    q: Tensor  # queries, (B, heads, E + H * W, C / heads and the channels of factors)
    k: Tensor  # keys, (B, heads, E + H' * W', C / heads and the channels of factors)
    v: Tensor  # values, of the shape of k: channels after C / heads are zero
    head_dims: int  # C / heads, whose root divides the logits
    biases: list[Tensor | None] | None  # added to the logits of each group, (B, heads, E + H * W, E + H' * W')
    grid: Layout  # of the queries
    key_grid: Layout  # of keys and values


class Attention(nn.Module):
    """Multi-head attention; with spatial reduction, keys and values come from a coarser grid (PVT, section 3.3).

    Its fused kernels do not store the attention weights, but have no second derivative: to compute one, run inside
    `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`. On a CPU there is no fused kernel for a learnt bias or dropout.
    """

    def __init__(self, index: int, spec: BlockSpec) -> None:
        super().__init__()
        self.index = index
        self.num_heads = spec.num_heads
        self.head_dims = spec.embed_dims // spec.num_heads
        self.sr_ratio = spec.sr_ratio
        self.attn_drop_rate = spec.attn_drop_rate
        self.q = nn.Linear(spec.embed_dims, spec.embed_dims)
        self.kv = nn.Linear(spec.embed_dims, 2 * spec.embed_dims)
        self.sr = make_reduction(spec)
        self.proj = nn.Linear(spec.embed_dims, spec.embed_dims)
        self.drop = nn.Dropout(spec.drop_rate)

    def forward(self, x: Tensor, grid: Layout, encodings: PositionEncodings, qk: Tensor | None = None) -> Tensor:
        """Applies attention to `(B, E + H * W, C)`, E = 0 with reduction; queries and keys are from `qk`, if given."""
        out = attend(*self.project(x, grid, encodings, qk), self.attn_drop_rate if self.training else 0.)
        return self.drop(self.proj(out))

    def project(self, x: Tensor, grid: Layout, encodings: PositionEncodings, qk: Tensor | None = None) -> Projected:
        """Computes queries, keys, values and bias. See `forward` for the arguments."""
        reduced, key_grid = self.reduce(x, grid)
        k, v = self.kv(reduced).chunk(2, dim=-1)
        if qk is not None:
            k, _ = self.kv(self.reduce(qk, grid)[0]).chunk(2, dim=-1)
        q, k, v = map(self.split_heads, (self.q(x if qk is None else qk), k, v))
        q, k = encodings.qk(q, k, self.index, grid, key_grid)
        biases = encodings.biases(q, self.index, grid, key_grid)
        q, k, v = encodings.with_factors(q, k, v, self.index, grid, key_grid)
        return Projected(q, k, v, self.head_dims, biases, grid, key_grid)

    def reduce(self, x: Tensor, grid: Layout) -> tuple[Tensor, Layout]:
        """Returns the tokens of the keys and their grid: `(B, E + H * W, C)` -> `(B, E + H' * W', C)`."""
        return (x, grid) if self.sr is None else self.sr(x, grid)

    def split_heads(self, x: Tensor) -> Tensor:
        """Returns a view `(B, N, C)` -> `(B, heads, N, C / heads)`."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class MLP(nn.Module):
    """A linear layer, exact GELU, and a second linear layer."""

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        self.fc1 = nn.Linear(spec.embed_dims, spec.mlp_ratio * spec.embed_dims)
        self.fc2 = nn.Linear(spec.mlp_ratio * spec.embed_dims, spec.embed_dims)
        self.drop = nn.Dropout(spec.drop_rate)
        self.recompute = spec.with_cp == 'selective'

    def forward(self, x: Tensor, grid: Layout) -> Tensor:
        """Applies the MLP to tokens, `(B, E + H * W, C)`; returns a tensor of the same shape."""
        return recomputed(self.compute, self.recompute, x, grid)

    def compute(self, x: Tensor, grid: Layout) -> Tensor:
        """Does what `forward` does, and stores the hidden activations for the backward pass."""
        return self.drop(self.fc2(self.drop(self.hidden(x, grid))))

    def hidden(self, x: Tensor, grid: Layout) -> Tensor:
        """Computes the input of the second linear layer: `(B, E + H * W, C)` -> `(B, E + H * W, hidden channels)`."""
        return F.gelu(self.fc1(x))


class ConvMLP(MLP):
    """An MLP with a zero-padded depthwise 3 x 3 convolution before GELU (arXiv 2106.13797, section 3.2), for E = 0."""

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__(spec)
        width = spec.mlp_ratio * spec.embed_dims
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def hidden(self, x: Tensor, grid: Layout) -> Tensor:
        return F.gelu(convolve(self.conv, self.fc1(x), grid, gap=1))


class ReluConvMLP(ConvMLP):
    """A `ConvMLP` with ReLU before the convolution, as in PVT v2-b2-li."""

    def hidden(self, x: Tensor, grid: Layout) -> Tensor:
        return F.gelu(convolve(self.conv, F.relu(self.fc1(x)), grid, gap=1))


class SwiGLU(MLP):
    """An MLP with a gate: `fc2(silu(g) * h)`, where `fc1` computes g and h (arXiv 2002.05202, section 2).

    It has two thirds of the hidden channels of `MLP`, rounded up to a multiple of 8, as in DINOv2 giant and DINOv3.
    """

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__(spec)
        width = round_up(spec.mlp_ratio * spec.embed_dims * 2 // 3, 8)
        self.fc1 = nn.Linear(spec.embed_dims, 2 * width)
        self.fc2 = nn.Linear(width, spec.embed_dims)

    def hidden(self, x: Tensor, grid: Layout) -> Tensor:
        gate, hidden = self.fc1(x).chunk(2, dim=-1)
        return F.silu(gate) * hidden


MLPS = {'linear': MLP, 'conv': ConvMLP, 'relu-conv': ReluConvMLP, 'swiglu': SwiGLU}


def make_reduction(spec: BlockSpec) -> PatchEmbed | PoolReduction | None:
    """Builds what makes keys of the tokens of a coarser grid (PVT, section 3.3); None if they are on the queries' grid.
    """
    if spec.sr_mode == 'pool':
        return PoolReduction(spec.embed_dims, spec.embed_norm_eps)
    side = spec.sr_ratio
    return PatchEmbed(spec.embed_dims, spec.embed_dims, side, spec.embed_norm_eps, side) if side > 1 else None


def make_tokens(count: int, embed_dims: int) -> nn.Parameter | None:
    """Returns learnt tokens, `(1, count, embed_dims)`, from a truncated normal of std 0.02; None if `count` is 0."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, count, embed_dims), std=0.02)) if count else None


class LayerScale(nn.Module):
    """Multiplies each channel by a learnt factor, which starts as `value` (CaiT, arXiv 2103.17239, section 3.1)."""

    def __init__(self, embed_dims: int, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((embed_dims,), float(value)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class DropPath(nn.Module):
    """Stochastic depth (arXiv 1603.09382, section 3): training drops the branch of random images, at a `rate`."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, grid: Layout) -> Tensor:
        if not self.training or self.rate == 0.:
            return x
        keep = 1. - self.rate
        if isinstance(grid, Packing):
            return x * grid.of_images(x.new_empty(len(grid.lengths)).bernoulli_(keep).div_(keep), x.shape[1])
        return x * x.new_empty((x.shape[0], 1, 1)).bernoulli_(keep).div_(keep)


def recomputed(function: Callable[..., Tensor], active: bool, *args: object) -> Tensor:
    """Returns `function(*args)`; if `active`, the backward pass recomputes it with the same random numbers."""
    if not active or not torch.is_grad_enabled():
        return function(*args)
    return checkpoint(function, *args, use_reentrant=False)
