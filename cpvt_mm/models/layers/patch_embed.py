"""Patch embedding: the entry of a stage, and the spatial reduction of keys and values in attention."""
from torch import Tensor, nn

from ..grid import pad_to_multiple, to_nchw, to_nhwc
from ..tracing import PatchConv2d


class PatchEmbed(nn.Module):
    """A convolution over non-overlapping patches, then LayerNorm (Twins, arXiv 2104.13840, section 3.1).

    Without the norm it is the patch embedding of ViT (arXiv 2010.11929, section 3.1).

    Rows and columns that do not fill a patch are zero-padded, not dropped.

    Args:
        in_channels: Channels of the input grid.
        embed_dims: Channels of a token.
        patch_size: Kernel and stride of the convolution, in cells of the input grid.
        eps: The eps of the LayerNorm. Defaults to 1e-5, as in the original (its blocks use 1e-6).
        norm: Whether a LayerNorm follows. Defaults to True.
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, eps: float = 1e-5,
                 norm: bool = True) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = PatchConv2d(in_channels, embed_dims, patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(embed_dims, eps=eps) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Embeds patches: `(B, H, W, in_channels)` -> `(B, ceil(H / patch_size), ceil(W / patch_size), embed_dims)`."""
        x = pad_to_multiple(x, self.patch_size)
        return self.norm(to_nhwc(self.proj(to_nchw(x))))
