"""Patch embeddings, and the reductions that make coarser grids of keys (PVT, arXiv 2102.12122, section 3.3)."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.tokens.grid import Grid, pad_or_crop, pad_to_multiple, round_up, to_map, to_nhwc, to_tokens
from cpvt_mm.tokens.packing import Layout, Packing, over_grids
from cpvt_mm.tokens.tracing import patch_conv

POOL_SIZE = 7


class PatchConv2d(nn.Conv2d):
    """A convolution whose stride is its kernel size, which must divide the sides of the map; see `patch_conv`."""

    def forward(self, x: Tensor) -> Tensor:
        return patch_conv(x, self.weight, self.bias)


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

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, norm_eps: float | None = 1e-5,
                 cell: int = 1) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.cell = cell
        self.proj: nn.Conv2d = PatchConv2d(in_channels, embed_dims, patch_size, stride=patch_size)
        self.norm = nn.Identity() if norm_eps is None else nn.LayerNorm(embed_dims, eps=norm_eps)

    def forward(self, x: Tensor, grid: Layout) -> tuple[Tensor, Layout]:
        """Embeds the patches of a grid, `(B, H * W, in_channels)` -> `(B, H' * W', embed_dims)`; returns the new grid.
        """
        if isinstance(grid, Packing):
            pixels, packing = self.cut(x, grid)
            return self.of_packed(pixels, packing), packing
        cells = self.pad(to_map(x, grid))
        height, width = (round_up(side, self.patch_size) // self.patch_size for side in (grid.height, grid.width))
        return self.embed(cells), Grid(height, width, self.cell, self.cell, frames=grid.frames)

    def pad(self, x: Tensor) -> Tensor:
        """Zero-pads maps `(B, in_channels, H, W)` so that the patches cover them."""
        return pad_to_multiple(x, self.patch_size)

    def embed(self, x: Tensor) -> Tensor:
        """Embeds the patches of maps, or patches that are cut: `(B, in_channels, H, W)` -> `(B, H' * W', embed_dims)`.
        """
        return self.norm(to_tokens(self.proj(x)))

    def cut(self, x: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
        """Returns what `of_packed` takes of packed tokens, `(1, T, in_channels)`, and the packing of the patches."""
        return packing.patches(x, self.patch_size, self.cell)

    def cut_images(self, x: Tensor, packing: Packing) -> Tensor:
        """Returns what `of_packed` takes of images `(B, in_channels, H, W)`, zero outside their sizes."""
        return image_patches(x, packing, self.patch_size)

    def of_packed(self, pixels: Tensor, packing: Packing) -> Tensor:
        """Embeds what was cut, `(T', in_channels, patch_size, patch_size)` -> `(1, T', embed_dims)`."""
        return self.embed(pixels).transpose(0, 1)

    def prepare(self, packing: Packing) -> Packing:
        """Makes the indices that packed tokens need, and returns the packing of the patches."""
        packing.to_patches(self.patch_size)
        return packing.coarser(self.patch_size, self.cell)


class OverlapPatchEmbed(PatchEmbed):
    """A zero-padded convolution with a kernel of `2 * patch_size - 1` and a stride of `patch_size`, then LayerNorm.

    It is the overlapping embedding of PVT v2 (arXiv 2106.13797, section 3.2) and SegFormer (arXiv 2105.15203, section
    3.1). A side of n cells gets `ceil(n / patch_size)` patches.
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, norm_eps: float = 1e-5) -> None:
        super().__init__(in_channels, embed_dims, patch_size, norm_eps)
        self.proj = nn.Conv2d(in_channels, embed_dims, 2 * patch_size - 1, patch_size, patch_size - 1)

    def pad(self, x: Tensor) -> Tensor:
        return x  # the convolution pads

    def cut(self, x: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
        """Puts the images on a canvas `(1, in_channels, H, W)`, one below another, with gaps."""
        move, canvas = packing.to_canvas(self.patch_size, self.patch_size)
        return to_map(move(x.squeeze(0))[None], canvas), packing.coarser(self.patch_size, self.cell)

    def cut_images(self, x: Tensor, packing: Packing) -> Tensor:
        return image_canvas(x, packing, self.patch_size)

    def of_packed(self, pixels: Tensor, packing: Packing) -> Tensor:
        """Embeds a canvas, `(1, in_channels, H, W)` -> `(1, T', embed_dims)`."""
        move, _ = packing.to_canvas(1)  # a gap of `patch_size` rows is one of the new grid
        return move.back(self.embed(pixels).squeeze(0))[None]

    def prepare(self, packing: Packing) -> Packing:
        packing.to_canvas(self.patch_size, self.patch_size)
        return packing.coarser(self.patch_size, self.cell)


PATCH_EMBEDS = {'disjoint': PatchEmbed, 'overlap': OverlapPatchEmbed}


class PoolReduction(nn.Module):
    """Average pooling to 7 x 7, a linear layer, LayerNorm, GELU (linear SRA of PVT v2, arXiv 2106.13797, section 3.2).

    Parts of a side that is not a multiple of 7 overlap by a row or column.
    """

    def __init__(self, embed_dims: int, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.norm = nn.LayerNorm(embed_dims, eps=norm_eps)

    def forward(self, x: Tensor, grid: Layout) -> tuple[Tensor, Layout]:
        """Pools a grid: `(B, H * W, C)` -> `(B, H' * W', C)`; returns the new grid."""
        pooled, key_grid = over_grids(pool, x, grid)
        return F.gelu(self.norm(self.proj(pooled))), key_grid


def pool(x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
    """Averages cells to 7 x 7: `(B, H * W, C)` -> `(B, H' * W', C)`; returns the new grid."""
    pooled = average_pool(to_nhwc(to_map(x, grid)), (POOL_SIZE, POOL_SIZE)).flatten(1, 2)
    return pooled, Grid(POOL_SIZE, POOL_SIZE, grid.height / POOL_SIZE, grid.width / POOL_SIZE)


def average_pool(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Averages parts of a grid, `(B, H, W, C)` -> `(B, *size, C)`; it can be exported with dynamic sizes."""
    rows, columns = (_shares(length, parts, x) for length, parts in zip(x.shape[1:3], size, strict=True))
    return torch.einsum('qw,bpwc->bpqc', columns, torch.einsum('ph,bhwc->bpwc', rows, x))


def _shares(length: int, parts: int, like: Tensor) -> Tensor:
    """Returns the weight of each of `length` cells in the mean of each part: `(parts, length)`."""
    part = torch.arange(parts, device=like.device)[:, None]
    cell = torch.arange(length, device=like.device)
    start, stop = part * length // parts, ((part + 1) * length + parts - 1) // parts
    return ((cell >= start) & (cell < stop)).to(like.dtype) / (stop - start)


def image_patches(x: Tensor, packing: Packing, side: int) -> Tensor:
    """Cuts images `(B, C, H, W)`, zero outside their sizes, into patches that are images of their own.

    Returns `(T, C, side, side)`. `packing` is that of the patches.
    """
    move, grid = packing.to_batch()
    padded = pad_or_crop(x, grid.height * side, grid.width * side)
    cells = padded.unflatten(3, (grid.width, side)).unflatten(2, (grid.height, side)).permute(0, 2, 4, 3, 5, 1)
    patches = move.back(cells.flatten(3).flatten(0, 2))  # (T, side * side * C)
    return patches.unflatten(1, (side, side, -1)).permute(0, 3, 1, 2)


def image_canvas(x: Tensor, packing: Packing, side: int) -> Tensor:
    """Puts images `(B, C, H, W)`, zero outside their sizes, one below another on a canvas, `(1, C, H', W')`.

    `packing` is that of patches of `side` pixels; `side` rows of zeros are below each image, as in its `to_canvas(1)`.
    """
    width = max(group.grid.width for group in packing.groups) * side
    rows = [pad_or_crop(x[image:image + 1], (grid.height + 1) * side, width)
            for images, grid in packing.groups for image in images]
    return torch.cat(rows, dim=2)
