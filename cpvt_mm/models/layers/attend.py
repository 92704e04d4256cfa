"""Scaled dot-product attention, a few queries at a time."""
import torch
import torch.nn.functional as F
from torch import Tensor

from .bands import lean_linear, rows_of_band
from .linear import linear, on_cpu


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, drop_rate: float = 0.) -> Tensor:
    """Softmax of `q @ k.mT / sqrt(d) + bias`, times `v` (arXiv 1706.03762, section 3.2.1).

    Queries times keys are never held as a whole, except with `drop_rate` on a CPU, and for a bias that is learnt.

    A head is a network of two layers, with softmax between them, whose weights are its keys and its values; on a CPU it
    is run as one where it is large. All else is left to torch's function: bias, dropout, other devices, compilers.

    Args:
        q: `(B, heads, N, d)`.
        k: `(B, heads, M, d)`.
        v: `(B, heads, M, d)`.
        bias: Broadcastable to `(B, heads, N, M)`. Defaults to None.
        drop_rate: Dropout of attention weights. Defaults to 0.

    Returns:
        `(B, heads, N, d)`.
    """
    if bias is not None or drop_rate or not on_cpu(q) or q.shape[2] <= rows_of_band(k.shape[2]):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop_rate)
    heads = zip(*(x.flatten(0, 1) for x in (q, k * q.shape[-1]**-0.5, v)), strict=True)
    return torch.stack([_attend_head(*head) for head in heads]).unflatten(0, q.shape[:2])


def _attend_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`(N, d)`, `(M, d)`, `(M, d)` -> `(N, d)`."""
    return lean_linear(lambda q, k: linear(q, k).softmax(dim=-1), q, v.t(), None, k)
