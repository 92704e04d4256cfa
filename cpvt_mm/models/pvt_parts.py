"""Parts that only PVT, PVT v2, MiT, DINOv2 giant and DINOv3 have, in the place of those in `layers`."""
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.packing import Layout
from cpvt_mm.tokens.sizes import round_up

from .layers import MLP, BlockSpec, PatchEmbed, PyramidStage

POOL_SIZE = 7


class OverlapPatchEmbed(PatchEmbed):
    """A zero-padded convolution with a kernel of `2 * patch_size - 1` and a stride of `patch_size`, then LayerNorm.

    It is the overlapping embedding of PVT v2 (arXiv 2106.13797, section 3.2) and SegFormer (arXiv 2105.15203, section
    3.1). A side of n cells gets `ceil(n / patch_size)` patches.
    """

    overlaps = True

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, norm_eps: float = 1e-5) -> None:
        super().__init__(in_channels, embed_dims, patch_size, norm_eps)
        self.proj = nn.Conv2d(in_channels, embed_dims, 2 * patch_size - 1, patch_size, patch_size - 1)

    def forward(self, x: Tensor, grid: Layout) -> tuple[Tensor, Layout]:
        patches = grid.convolve(self.proj, x, gap=self.patch_size, stride=self.patch_size)
        return self.norm(patches), grid.coarser(self.patch_size)


class ConvMLP(MLP):
    """An MLP with a zero-padded depthwise 3 x 3 convolution before GELU (arXiv 2106.13797, section 3.2), for E = 0."""

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__(spec)
        width = spec.mlp_ratio * spec.embed_dims
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def hidden(self, x: Tensor, grid: Layout) -> Tensor:
        return F.gelu(grid.convolve(self.conv, self.fc1(x), gap=1))


class ReluConvMLP(ConvMLP):
    """A `ConvMLP` with ReLU before the convolution, as in PVT v2-b2-li."""

    def hidden(self, x: Tensor, grid: Layout) -> Tensor:
        return F.gelu(grid.convolve(self.conv, F.relu(self.fc1(x)), gap=1))


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


class PoolReduction(nn.Module):
    """Average pooling to 7 x 7, a linear layer, LayerNorm, GELU (linear SRA of PVT v2, arXiv 2106.13797, section 3.2).

    Parts of a side that is not a multiple of 7 overlap by a row or column.
    """

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        self.proj = nn.Linear(spec.embed_dims, spec.embed_dims)
        self.norm = nn.LayerNorm(spec.embed_dims, eps=spec.embed_norm_eps)

    def forward(self, x: Tensor, grid: Layout) -> tuple[Tensor, Layout]:
        """Pools a grid: `(B, H * W, C)` -> `(B, H' * W', C)`; returns the new grid."""
        return F.gelu(self.norm(self.proj(grid.each(pool, x)))), grid.with_grids([
            Grid(POOL_SIZE, POOL_SIZE, group.height / POOL_SIZE, group.width / POOL_SIZE) for group in grid.grids])


def pool(x: Tensor, grid: Grid) -> Tensor:
    """Averages cells to 7 x 7: `(B, H * W, C)` -> `(B, 49, C)`."""
    return average_pool(x.unflatten(1, (grid.height, grid.width)), (POOL_SIZE, POOL_SIZE)).flatten(1, 2)


def average_pool(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Averages the parts of a grid, `(B, H, W, C)` -> `(B, *size, C)`, in a way that can be exported with dynamic
    sizes.
    """
    rows, columns = (_shares(length, parts, x) for length, parts in zip(x.shape[1:3], size, strict=True))
    return torch.einsum('qw,bpwc->bpqc', columns, torch.einsum('ph,bhwc->bpwc', rows, x))


def _shares(length: int, parts: int, like: Tensor) -> Tensor:
    """Returns the weight of each of `length` cells in the mean of each part: `(parts, length)`."""
    part = torch.arange(parts, device=like.device)[:, None]
    cell = torch.arange(length, device=like.device)
    start, stop = part * length // parts, ((part + 1) * length + parts - 1) // parts
    return ((cell >= start) & (cell < stop)).to(like.dtype) / (stop - start)


class LayerScale(nn.Module):
    """Multiplies each channel by a learnt factor, which starts as `value` (CaiT, arXiv 2103.17239, section 3.1)."""

    def __init__(self, embed_dims: int, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((embed_dims,), float(value)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def make_tokens(count: int, embed_dims: int) -> nn.Parameter:
    """Returns learnt tokens, `(1, count, embed_dims)`, from a truncated normal of std 0.02."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, count, embed_dims), std=0.02))


def prepend(tokens: Sequence[Tensor], count: int, x: Tensor, grid: Layout) -> tuple[Tensor, Layout]:
    """Puts learnt tokens, `(1, n, C)` each and `count` in all, before the cells of each image; returns the new layout.
    """
    def to_group(cells: Tensor, group: object) -> Tensor:
        # len(cells) would fix the number of images in torch.export.
        return torch.cat([*(token.expand(cells.shape[0], -1, -1) for token in tokens), cells], dim=1)

    layout = grid.with_grids([group._replace(extra=count) for group in grid.grids])
    return (grid.each(to_group, x) if tokens else x), layout


class ClassTokenStage(PyramidStage):
    """A stage whose cells attend to a class token, too, which is not returned (PVT, arXiv 2102.12122, section 3.5)."""

    def __init__(self, patch_embed: PatchEmbed, grid: tuple[int, int], blocks: BlockSpec, *args: Any) -> None:
        super().__init__(patch_embed, grid, blocks, *args)
        self.cls_token = make_tokens(1, blocks.embed_dims)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        x, with_token = prepend([self.cls_token], 1, x, layout)
        return with_token.cells(super().forward(x, with_token))


PATCH_EMBEDS: dict[str, type[PatchEmbed]] = {'disjoint': PatchEmbed, 'overlap': OverlapPatchEmbed}
MLPS: dict[str, type[MLP]] = {'linear': MLP, 'conv': ConvMLP, 'relu-conv': ReluConvMLP, 'swiglu': SwiGLU}
REDUCTIONS: dict[str, type[PoolReduction] | None] = {'conv': None, 'pool': PoolReduction}
