"""Patch embedding: the entry of a stage, and the spatial reduction of keys and values in attention."""
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.models.grid import Grid, is_traced, pad_to_multiple, to_tokens


class PatchConv2d(nn.Conv2d):
    """A convolution over non-overlapping patches; its stride must equal its kernel size.

    Under tracing it is computed as a matrix product. On a CPU, torch branches on the image size for a 2 x 2
    convolution of one image (`use_mkldnn` in ATen). Three of the four stages have such a convolution.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Convolves `(B, C, H, W)` -> `(B, C', H / stride, W / stride)`; the stride must divide both sides."""
        if not is_traced(input):
            return super().forward(input)
        size, _ = self.kernel_size
        height, width = input.shape[2] // size, input.shape[3] // size
        cells = input.permute(0, 2, 3, 1).unflatten(2, (width, size)).unflatten(1, (height, size))
        patches = cells.transpose(2, 3).flatten(3)  # (B, H / size, W / size, size * size * C)
        return F.linear(patches, self.weight.permute(0, 2, 3, 1).flatten(1), self.bias).permute(0, 3, 1, 2)


class PatchEmbed(nn.Module):
    """A convolution over non-overlapping patches, then LayerNorm (Twins, arXiv 2104.13840, section 3.1).

    Without the norm it is the patch embedding of ViT (arXiv 2010.11929, section 3.1).

    Rows and columns that do not fill a patch are zero-padded, not dropped.

    Args:
        in_channels: Channels of the input map.
        embed_dims: Channels of a token.
        patch_size: Kernel and stride of the convolution, in cells of the input map.
        eps: The eps of the LayerNorm. Defaults to 1e-5, as in the original (its blocks use 1e-6).
        norm: Whether a LayerNorm follows. Defaults to True.
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, eps: float = 1e-5,
                 norm: bool = True) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = PatchConv2d(in_channels, embed_dims, patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(embed_dims, eps=eps) if norm else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Embeds patches.

        Args:
            x: `(B, in_channels, H, W)`.

        Returns:
            Tokens `(B, h * w, embed_dims)` and their grid: h and w are `ceil(H / patch_size)` and
            `ceil(W / patch_size)`. A cell has `patch_size` cells of `x` on each side.
        """
        patches = self.proj(pad_to_multiple(x, self.patch_size))
        height, width = patches.shape[2:]
        return self.norm(to_tokens(patches)), Grid(height, width, self.patch_size, self.patch_size)
