"""The contract that position encodings share, and their combination."""
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS

from ..arguments import check_names

Grid = tuple[int, int]


class PositionEncoding(nn.Module):
    """How the tokens of one stage learn where they are. At each of four points an encoding may do something.

    A subclass overrides the points it needs; the others do nothing.

    Args:
        embed_dims: Channels of the stage's tokens.
        num_heads: Attention heads of its blocks.
        depth: Number of its blocks.
    """

    def __init__(self, embed_dims: int, num_heads: int, depth: int) -> None:
        super().__init__()
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.depth = depth

    def at_entry(self, x: Tensor) -> Tensor:
        """Before the first block. `(B, H, W, C)` -> `(B, H, W, C)`."""
        return x

    def after_block(self, x: Tensor, index: int) -> Tensor:
        """After block `index`, counted from 0. `(B, H, W, C)` -> `(B, H, W, C)`."""
        return x

    def encode_qk(self, q: Tensor, k: Tensor, grid: Grid, key_grid: Grid) -> tuple[Tensor, Tensor]:
        """Queries and keys of every block: `(B, heads, H * W, C / heads)` and `(B, heads, H' * W', C / heads)`.

        The cells of both grids, `(H, W)` and `(H', W')`, count from the top left corner; a key's cell covers
        `sr_ratio` x `sr_ratio` cells of the query grid.
        """
        return q, k

    def attention_bias(self, grid: Grid, key_grid: Grid) -> Tensor | None:
        """Added to the logits of every block: broadcastable to `(B, heads, H * W, H' * W')`, or None."""
        return None


class PositionEncodings(nn.ModuleList):
    """Zero or more position encodings of one stage, applied in turn at each of the four points."""

    def at_entry(self, x: Tensor) -> Tensor:
        for encoding in self:
            x = encoding.at_entry(x)
        return x

    def after_block(self, x: Tensor, index: int) -> Tensor:
        for encoding in self:
            x = encoding.after_block(x, index)
        return x

    def encode_qk(self, q: Tensor, k: Tensor, grid: Grid, key_grid: Grid) -> tuple[Tensor, Tensor]:
        for encoding in self:
            q, k = encoding.encode_qk(q, k, grid, key_grid)
        return q, k

    def attention_bias(self, grid: Grid, key_grid: Grid) -> Tensor | None:
        biases = [bias for encoding in self if (bias := encoding.attention_bias(grid, key_grid)) is not None]
        return sum(biases[1:], biases[0]) if biases else None


def build_position_encodings(cfg: dict[str, Any] | Sequence[dict[str, Any]] | None, embed_dims: int, num_heads: int,
                             depth: int) -> PositionEncodings:
    """Builds what a backbone's `position_encoding` argument says, for one stage.

    Args:
        cfg: None, one config (`dict(type='PEG', ...)`) or a sequence of configs that combine.
        embed_dims: Channels of the stage's tokens.
        num_heads: Attention heads of its blocks.
        depth: Number of its blocks.

    Raises:
        TypeError: If `cfg` is none of these, or sets what the stage gives.
        ValueError: If a type is not registered.
    """
    cfgs = [] if cfg is None else [cfg] if isinstance(cfg, dict) else cfg
    if not isinstance(cfgs, (list, tuple)) or not all(isinstance(c, dict) and 'type' in c for c in cfgs):
        raise TypeError(f'position_encoding is {cfg!r}, but must be None, a dict with a type, or a list of such dicts.')
    POSITION_ENCODINGS.import_from_location()
    stage = dict(embed_dims=embed_dims, num_heads=num_heads, depth=depth)
    for c in cfgs:
        if isinstance(c['type'], str):
            name = c['type'].removeprefix('cpvt_mm.')
            check_names('a type of position_encoding', [name], sorted(POSITION_ENCODINGS.module_dict))
        for name in stage:
            if name in c:
                raise TypeError(f'position_encoding sets {name}={c[name]!r}, but it is the stage that gives it.')
    return PositionEncodings(POSITION_ENCODINGS.build({**c, **stage, '_scope_': 'cpvt_mm'}) for c in cfgs)
