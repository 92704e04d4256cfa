"""Multi-head attention over a token grid, keys and values on a coarser one."""
import torch.nn.functional as F
from torch import Tensor, nn

from ..position_encodings import PositionEncodings
from .patch_embed import PatchEmbed


class SpatialReductionAttention(nn.Module):
    """Attention whose keys and values come from a grid reduced `sr_ratio` times (PVT, arXiv 2102.12122, section 3.3).

    Queries times keys are never held in memory where torch has a fused kernel: always, except with
    `attn_drop_rate > 0` on the CPU, or with a position encoding that adds a bias to the logits and learns it.

    Args:
        embed_dims: Channels of a token.
        num_heads: Heads; divides `embed_dims`.
        sr_ratio: Reduction of the key grid per side. 1: none.
        drop_rate: Dropout after the output projection. Defaults to 0.
        attn_drop_rate: Dropout of attention weights. Defaults to 0.
    """

    def __init__(self, embed_dims: int, num_heads: int, sr_ratio: int = 1, drop_rate: float = 0.,
                 attn_drop_rate: float = 0.) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attn_drop_rate = attn_drop_rate
        self.q = nn.Linear(embed_dims, embed_dims)
        self.kv = nn.Linear(embed_dims, 2 * embed_dims)
        self.sr = PatchEmbed(embed_dims, embed_dims, sr_ratio) if sr_ratio > 1 else nn.Identity()
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, position_encoding: PositionEncodings) -> Tensor:
        """`(B, H, W, C)` -> `(B, H, W, C)`."""
        reduced = self.sr(x)
        grid, key_grid = x.shape[1:3], reduced.shape[1:3]
        q = self._split_heads(self.q(x))  # (B, heads, H * W, C / heads)
        k, v = map(self._split_heads, self.kv(reduced).chunk(2, dim=-1))  # (B, heads, H' * W', C / heads)
        q, k = position_encoding.encode_qk(q, k, grid, key_grid)
        out = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=position_encoding.attention_bias(grid, key_grid),
            dropout_p=self.attn_drop_rate if self.training else 0.)
        return self.drop(self.proj(out.transpose(1, 2).reshape(x.shape)))

    def _split_heads(self, x: Tensor) -> Tensor:
        """`(B, H, W, C)` -> `(B, heads, H * W, C / heads)`, a view."""
        return x.flatten(1, 2).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
