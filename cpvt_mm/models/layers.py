"""The layers of Twins-PCPVT (arXiv 2104.13840, section 3.1), with attention of PVT (arXiv 2102.12122)."""
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cpvt_mm.encodings.base import PositionEncodings, StageSpec, build_position_encodings
from cpvt_mm.tokens.packing import Layout
from cpvt_mm.tokens.tracing import PatchConv2d, is_traced

# Activation checkpointing: which parts the backward pass recomputes. None (False), the MLPs ('selective'), or whole
# blocks (True).
WithCp: TypeAlias = bool | Literal['selective']


class PatchEmbed(nn.Module):
    """A convolution over non-overlapping patches, then LayerNorm (Twins); without the norm, the embedding of ViT.

    Args:
        in_channels: Channels of a cell of the input: of a pixel, or of a token.
        embed_dims: Channels of a token.
        patch_size: Kernel and stride of the convolution, in cells of the input. Rows and columns that do not fill a
            patch are zero-padded.
        norm_eps: The eps of the LayerNorm that follows; None: there is no norm. Defaults to 1e-5, as in the original.
        cell: Height and width of a cell of the new grid. Defaults to 1.
    """

    overlaps = False  # whether patches do

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, norm_eps: float | None = 1e-5,
                 cell: int = 1) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.cell = cell
        self.proj: nn.Conv2d = PatchConv2d(in_channels, embed_dims, patch_size, stride=patch_size)
        self.norm = nn.Identity() if norm_eps is None else nn.LayerNorm(embed_dims, eps=norm_eps)

    def forward(self, x: Tensor, grid: Layout) -> tuple[Tensor, Layout]:
        """Embeds patches of a grid, `(B, H * W, in_channels)` -> `(B, H' * W', embed_dims)`; returns the new grid."""
        patches, coarser = grid.patches(x, self.patch_size, self.cell)
        return self.norm(self.proj(patches)), coarser


@dataclass(frozen=True)
class BlockSpec:
    """The options that all blocks of a stage share."""
    embed_dims: int  # channels of a token, C
    num_heads: int  # divides `embed_dims`
    mlp_ratio: int  # hidden channels of the MLP, as a multiple of `embed_dims`
    sr_ratio: int = 1  # by which spatial reduction shrinks each side of the key grid; 1: no reduction
    norm_eps: float = 1e-6  # of the LayerNorms before attention and MLP
    embed_norm_eps: float = 1e-5  # of the LayerNorms in patch embeddings and spatial reduction
    drop_rate: float = 0.  # dropout of hidden channels, and at the end of each branch
    attn_drop_rate: float = 0.  # dropout of attention weights
    with_cp: WithCp = False
    make_mlp: 'Callable[[BlockSpec], nn.Module] | None' = None  # None: `MLP`
    make_reduction: 'Callable[[BlockSpec], nn.Module] | None' = None  # None: patches of `sr_ratio`
    make_scale: Callable[[], nn.Module] | None = None  # layer scale; None: there is none


class Block(nn.Module):
    """Pre-norm attention and a pre-norm MLP, each in a residual branch; position encodings know its `index`."""

    def __init__(self, index: int, spec: BlockSpec, drop_path_rate: float = 0.) -> None:
        super().__init__()
        self.index = index
        self.drop_path_rate = drop_path_rate
        self.recompute_mlp = spec.with_cp == 'selective'
        self.norm1 = nn.LayerNorm(spec.embed_dims, eps=spec.norm_eps)
        self.attn = Attention(index, spec)
        self.ls1 = spec.make_scale() if spec.make_scale else None
        self.norm2 = nn.LayerNorm(spec.embed_dims, eps=spec.norm_eps)
        self.mlp = (spec.make_mlp or MLP)(spec)
        self.ls2 = spec.make_scale() if spec.make_scale else None

    def forward(self, x: Tensor, grid: Layout, encodings: PositionEncodings) -> Tensor:
        """Applies the block to tokens, `(B, E + H * W, C)` or packed tokens `(1, T, C)`; keeps the shape."""
        if self.training and self.drop_path_rate:
            x = residual(x, partial(self.attend, encodings=encodings), grid, self.drop_path_rate)
            return residual(x, self.transform, grid, self.drop_path_rate)
        x = x + self.attend(x, grid, encodings)
        return x + self.transform(x, grid)

    def attend(self, x: Tensor, grid: Layout, encodings: PositionEncodings) -> Tensor:
        """Computes the branch of attention; a PEG may be for queries and keys only."""
        qk = self.norm1(encodings.qk_tokens(x, self.index, grid)) if encodings.acting['qk_tokens'] else None
        x = self.attn(self.norm1(x), grid, encodings, qk)
        return x if self.ls1 is None else self.ls1(x)

    def transform(self, x: Tensor, grid: Layout) -> Tensor:
        """Computes the branch of the MLP."""
        normed = self.norm2(x)
        x = recomputed(self.mlp, normed, grid) if self.recompute_mlp else self.mlp(normed, grid)
        return x if self.ls2 is None else self.ls2(x)


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
    clips = [clip for clip, number in enumerate(drawn) if number < keep]
    if len(clips) in (0, len(drawn)):
        return torch.add(x, branch(x, grid), alpha=bool(clips) / keep)
    dim, places, part = grid.part(clips)
    places = places.to(x.device, non_blocking=True)
    return x.index_add(dim, places, branch(x.index_select(dim, places), part).to(x.dtype), alpha=1 / keep)


def recomputed(function: Callable[..., Tensor], *args: object) -> Tensor:
    """Returns `function(*args)`, which the backward pass recomputes with the same random numbers."""
    return checkpoint(function, *args, use_reentrant=False) if torch.is_grad_enabled() else function(*args)


class PyramidStage(nn.Module):
    """A stage of the pyramid: a patch embedding, blocks with position encodings, and a norm if there is one.

    `grid` has the rows and columns of tokens for the backbone's `img_size`; each block has a rate of stochastic depth.
    """

    def __init__(self, patch_embed: PatchEmbed, grid: tuple[int, int], blocks: BlockSpec,
                 drop_path_rates: Sequence[float],
                 position_encoding: dict[str, Any] | Sequence[dict[str, Any]] | None, norm: bool) -> None:
        super().__init__()
        self.recompute = blocks.with_cp is True
        self.patch_embed = patch_embed
        self.drop_rate = blocks.drop_rate
        self.position_encoding = build_position_encodings(
            position_encoding, StageSpec(blocks.embed_dims, blocks.num_heads, len(drop_path_rates), grid))
        self.blocks = nn.ModuleList(Block(index, blocks, rate) for index, rate in enumerate(drop_path_rates))
        self.norm = nn.LayerNorm(blocks.embed_dims, eps=blocks.norm_eps) if norm else None

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Runs the blocks on what `patch_embed` returns, `(B, H * W, embed_dims)` or packed; keeps the shape."""
        encodings = self.position_encoding
        x = F.dropout(x, self.drop_rate, self.training) if self.drop_rate else x
        x = encodings.tokens(x, -1, layout) if -1 in encodings.positions else x
        for index, block in enumerate(self.blocks):
            x = recomputed(block, x, layout, encodings) if self.recompute else block(x, layout, encodings)
            if index in encodings.positions:
                x = encodings.tokens(x, index, layout)  # after block 0 the PEG: x + conv(x)
        return x if self.norm is None else self.norm(x)


# The inputs of attention, of packed images with B = 1; E extra tokens precede the cells of each grid:
# - queries, (B, heads, E + H * W, D): D is C / heads and the channels of factors;
# - keys and values, (B, heads, E + H' * W', D): channels of values after C / heads are zero;
# - biases of the logits of each group of images, (B, heads, E + H * W, E + H' * W'), and the layout of the keys.
Projected: TypeAlias = tuple[Tensor, Tensor, Tensor, Sequence[Tensor | None] | None, Layout]


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
        self.drop_rate, self.attn_drop_rate = spec.drop_rate, spec.attn_drop_rate
        self.q = nn.Linear(spec.embed_dims, spec.embed_dims)
        self.kv = nn.Linear(spec.embed_dims, 2 * spec.embed_dims)
        self.sr = spec.make_reduction(spec) if spec.make_reduction else None if spec.sr_ratio == 1 else PatchEmbed(
            spec.embed_dims, spec.embed_dims, spec.sr_ratio, spec.embed_norm_eps, cell=spec.sr_ratio)
        self.proj = nn.Linear(spec.embed_dims, spec.embed_dims)

    def forward(self, x: Tensor, grid: Layout, encodings: PositionEncodings, qk: Tensor | None = None) -> Tensor:
        """Applies attention to `(B, E + H * W, C)`, E = 0 with reduction; queries and keys are from `qk`, if given."""
        q, k, v, biases, key_grid = self.project(x, grid, encodings, qk)
        drop_rate = self.attn_drop_rate if self.training else 0.
        out = grid.attend(q, k, v, biases, key_grid, self.head_dims**-0.5, drop_rate)
        x = self.proj((out[..., :self.head_dims] if encodings.act_in_attention else out).flatten(2))
        return F.dropout(x, self.drop_rate, self.training) if self.drop_rate else x

    def project(self, x: Tensor, grid: Layout, encodings: PositionEncodings, qk: Tensor | None = None) -> Projected:
        """Computes the inputs of attention (see `Projected`) from the arguments of `forward`."""
        k, v, key_grid = self.keys_and_values(x, grid)
        if qk is not None:
            k, _, _ = self.keys_and_values(qk, grid)
        q = self.q(x if qk is None else qk)
        q = q.view(q.shape[0], q.shape[1], self.num_heads, self.head_dims).transpose(1, 2)
        if not encodings.act_in_attention:
            return q, k, v, None, key_grid
        return *encodings.attention(q, k, v, self.index, grid, key_grid), key_grid

    def keys_and_values(self, x: Tensor, grid: Layout) -> tuple[Tensor, Tensor, Layout]:
        """Computes keys and values, `(B, heads, E + H' * W', C / heads)`, and their grid."""
        x, grid = (x, grid) if self.sr is None else self.sr(x, grid)
        kv = self.kv(x)
        kv = kv.view(kv.shape[0], kv.shape[1], 2, self.num_heads, self.head_dims).permute(2, 0, 3, 1, 4)
        k, v = kv.unbind()
        return k, v, grid


class MLP(nn.Module):
    """A linear layer, exact GELU, and a second linear layer."""

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        self.fc1 = nn.Linear(spec.embed_dims, spec.mlp_ratio * spec.embed_dims)
        self.fc2 = nn.Linear(spec.mlp_ratio * spec.embed_dims, spec.embed_dims)
        self.drop_rate = spec.drop_rate

    def forward(self, x: Tensor, grid: Layout) -> Tensor:
        """Applies the MLP to tokens, `(B, E + H * W, C)`; returns a tensor of the same shape."""
        hidden = self.hidden(x, grid)
        if not self.drop_rate:
            return self.fc2(hidden)
        x = self.fc2(F.dropout(hidden, self.drop_rate, self.training))
        return F.dropout(x, self.drop_rate, self.training)

    def hidden(self, x: Tensor, grid: Layout) -> Tensor:
        """Computes the input of the second linear layer: `(B, E + H * W, C)` -> `(B, E + H * W, hidden channels)`."""
        return F.gelu(self.fc1(x))
