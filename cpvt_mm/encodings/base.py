"""The contract of position encodings, and those of a stage together."""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.packing import Layout, Packing, grids_of, groups_of, joined, over_groups
from cpvt_mm.tokens.validation import check_names

from .factors import as_channels, beside


@dataclass(frozen=True)
class StageSpec:
    """The blocks that an encoding is for: a stage of the pyramid, or the whole plain backbone."""
    embed_dims: int  # channels of a token
    num_heads: int  # attention heads of a block
    depth: int  # number of blocks
    grid: tuple[int, int]  # rows and columns for an image of the backbone's `img_size`

    @property
    def head_dims(self) -> int:
        """Channels of an attention head."""
        return self.embed_dims // self.num_heads


class PositionEncoding(nn.Module):
    """Base class of position encodings: adds position information to the tokens of one stage, at any of five points.

    A subclass overrides the methods that it needs: `tokens`, `qk_tokens`, `qk`, `bias` and `factors`. They get the `H *
    W` cells of the grid only, without class and other extra tokens. The backbone passes `stage`; configs cannot set it.

    Attributes:
        spans_frames (bool): Whether it mixes the frames of a clip, `grid.frames` consecutive images. Defaults to False.
        takes_packed (bool): Whether `tokens` and `qk_tokens` also take the cells of images of several sizes, `(1, T,
            C)`, with a `Packing` as grid. Defaults to False: they get images of one size at a time.
    """

    spans_frames = False
    takes_packed = False

    def __init__(self, stage: StageSpec) -> None:
        super().__init__()
        self.stage = stage
        self.register_load_state_dict_pre_hook(_fit_weights)

    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        """Encodes tokens `(B, H * W, C)` of a grid before the first block (`position` -1) or after block `position`."""
        return x

    def qk_tokens(self, x: Tensor, index: int, grid: Grid) -> Tensor:
        """Encodes tokens for the queries and keys, but not the values, of block `index`; see `tokens`."""
        return x

    def qk(self, q: Tensor, k: Tensor, index: int, grid: Grid, key_grid: Grid) -> tuple[Tensor, Tensor]:
        """Encodes queries `(B, heads, H * W, C / heads)` and keys `(B, heads, H' * W', C / heads)` of a block.

        `index` counts blocks from 0. The `cell_height` and `cell_width` of a coarser key grid are in query tokens.
        """
        return q, k

    def bias(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> Tensor | None:
        """Computes what is added to the logits of attention, broadcastable to `(B, heads, H * W, H' * W')`, or None."""
        return None

    def factors(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> tuple[Tensor, Tensor] | None:
        """Computes a bias without the memory of all pairs: the logits get the product of two factors; or None.

        They are broadcastable to `(B, heads, H * W, R)` and `(B, heads, H' * W', R)`, and not in half precision. They
        become R more channels of queries and keys; in half precision 3 R, so that the product is as exact as it was.
        """
        return None

    def init_parameters(self) -> None:
        """Sets initial values after the backbone has set those of linear layers and convolutions. Default: none."""

    def fuse(self) -> None:
        """Makes inference cheaper with equal outputs, in place; the default changes nothing. See `export.fuse`."""

    def fit_weights(self, weights: dict[str, Tensor], prefix: str) -> None:
        """Adapts weights for another grid or number of dimensions to this encoding, in place; the default adapts none.

        `load_state_dict` and `load_pretrained` call it. `prefix` precedes the encoding's names in `weights`.
        """


def _fit_weights(encoding: PositionEncoding, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
    encoding.fit_weights(state_dict, prefix)


class PositionEncodings(nn.ModuleList):
    """The position encodings of one stage, applied in turn. The `grid.extra` tokens stay unchanged."""

    def __iter__(self) -> Iterator[PositionEncoding]:
        return super().__iter__()  # type: ignore[return-value]  # ModuleList has no type parameter for its modules

    def overriding(self, method: str) -> list[PositionEncoding]:
        """Returns the encodings that act at a point of the block."""
        return [part for part in self if getattr(type(part), method) is not getattr(PositionEncoding, method)]

    def tokens(self, x: Tensor, position: int, grid: Layout) -> Tensor:
        """Encodes the tokens `(B, E + H * W, C)` at a position, -1 or the index of a block; keeps the shape."""
        for encoding in self.overriding('tokens'):
            x = _encode(encoding.tokens, encoding.takes_packed, x, position, grid)
        return x

    def qk_tokens(self, x: Tensor, index: int, grid: Layout) -> Tensor:
        """Encodes the tokens for queries and keys of block `index`; returns a tensor of the shape of `x`."""
        for encoding in self.overriding('qk_tokens'):
            x = _encode(encoding.qk_tokens, encoding.takes_packed, x, index, grid)
        return x

    def qk(self, q: Tensor, k: Tensor, index: int, grid: Layout, key_grid: Layout) -> tuple[Tensor, Tensor]:
        """Encodes queries and keys of block `index`, `(B, heads, E + H * W, C / heads)`; keeps the shapes."""
        return _over_pairs(self._qk, q, k, index, grid, key_grid) if self.overriding('qk') else (q, k)

    def _qk(self, q: Tensor, k: Tensor, index: int, grid: Grid, key_grid: Grid) -> tuple[Tensor, Tensor]:
        new_q, new_k = cells = _cells(q, grid, dim=2), _cells(k, key_grid, dim=2)
        for encoding in self:
            new_q, new_k = encoding.qk(new_q, new_k, index, grid, key_grid)
        return (q if new_q is cells[0] else _after_extra(q, new_q, grid, dim=2),
                k if new_k is cells[1] else _after_extra(k, new_k, key_grid, dim=2))

    def with_factors(self, q: Tensor, k: Tensor, v: Tensor, index: int, grid: Layout, key_grid: Layout
                     ) -> tuple[Tensor, Tensor, Tensor]:
        """Appends channels to queries and keys, `(B, heads, E + H * W, C / heads)`: factors, 0 at extra tokens.

        Fused kernels need the same width of all three, and some of them a multiple of 8: zeros fill it up.
        """
        if not self.overriding('factors'):
            return q, k, v
        q, k = _over_pairs(self._with_factors, q, k, index, grid, key_grid)
        return q, k, F.pad(v, (0, q.shape[-1] - v.shape[-1]))

    def _with_factors(self, q: Tensor, k: Tensor, index: int, grid: Grid, key_grid: Grid) -> tuple[Tensor, Tensor]:
        cells, root = _cells(q, grid, dim=2), q.shape[-1]**0.5
        for encoding in self:
            factors = encoding.factors(cells, index, grid, key_grid)
            if factors is not None:
                # Attention divides all products by this root.
                of_q, of_k = as_channels(factors[0] * root, factors[1], q.dtype)
                q, k = beside(q, of_q, grid), beside(k, of_k, key_grid)
        return q, k

    def biases(self, q: Tensor, index: int, grid: Layout, key_grid: Layout) -> list[Tensor | None] | None:
        """Sums the biases for each group of images, 0 at extra tokens; returns None if there are none.

        They are in the dtype of `q`, `(B, heads, E + H * W, E + H' * W')`. Images of one size are one group.
        """
        if not self.overriding('bias'):
            return None
        biases = [self._bias(part, index, of, key_of)
                  for (part, of), key_of in zip(groups_of(q, grid, dim=2), grids_of(key_grid), strict=True)]
        return None if all(bias is None for bias in biases) else biases

    def _bias(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> Tensor | None:
        biases = [encoding.bias(_cells(q, grid, dim=2), index, grid, key_grid) for encoding in self]
        given = [bias for bias in biases if bias is not None]
        if not given:
            return None
        total = sum(given[1:], start=given[0]).to(q.dtype)
        padded = F.pad(total, (grid.extra, 0, grid.extra, 0)) if grid.extra else total
        return padded.expand(*q.shape[:2], -1, -1)  # exported code must not ask whether the batch has one image


def _encode(encode: Callable[[Tensor, int, Any], Tensor], takes_packed: bool, x: Tensor, index: int, layout: Layout
            ) -> Tensor:
    """Encodes the cells of tokens; those of packed images a group at a time, unless `encode` takes these."""

    def encode_cells(part: Tensor, grid: Grid) -> Tensor:
        cells = _cells(part, grid, dim=1)
        encoded = encode(cells, index, grid)
        return part if encoded is cells else _after_extra(part, encoded, grid, dim=1)

    if takes_packed and isinstance(layout, Packing) and not layout.extra:
        return encode(x, index, layout)
    return over_groups(encode_cells, x, layout)


def _over_pairs(function: Callable[[Tensor, Tensor, int, Grid, Grid], tuple[Tensor, Tensor]], q: Tensor, k: Tensor,
                index: int, grid: Layout, key_grid: Layout) -> tuple[Tensor, Tensor]:
    """Applies a function to the queries and keys of each group, `(B, heads, E + H * W, channels)`."""
    groups = zip(groups_of(q, grid, dim=2), groups_of(k, key_grid, dim=2), strict=True)
    pairs = [function(part, key_part, index, of, key_of) for (part, of), (key_part, key_of) in groups]
    return joined([new for new, _ in pairs], grid, dim=2), joined([new for _, new in pairs], key_grid, dim=2)


def _cells(x: Tensor, grid: Grid, dim: int) -> Tensor:
    """Returns the cells of the grid along `dim`: `x` itself if there are no extra tokens."""
    return x.narrow(dim, grid.extra, x.shape[dim] - grid.extra) if grid.extra else x


def _after_extra(x: Tensor, cells: Tensor, grid: Grid, dim: int) -> Tensor:
    """Puts the extra tokens of `x` before other cells."""
    return torch.cat([x.narrow(dim, 0, grid.extra), cells], dim) if grid.extra else cells


def build_position_encodings(cfg: dict[str, Any] | Sequence[dict[str, Any]] | None,
                             stage: StageSpec) -> PositionEncodings:
    """Builds the encodings of one stage from None, one config (`dict(type='PEG', ...)`) or a sequence of configs.

    Raises a TypeError if `cfg` has another type or sets the stage, or a ValueError if a type is not registered.
    """
    cfgs = [] if cfg is None else [cfg] if isinstance(cfg, dict) else cfg
    if not isinstance(cfgs, (list, tuple)) or not all(isinstance(c, dict) and 'type' in c for c in cfgs):
        raise TypeError(f'position_encoding is {cfg!r}, but must be None, a dict with a type, or a list of such dicts.')
    POSITION_ENCODINGS.import_from_location()
    for c in cfgs:
        if isinstance(c['type'], str):
            name = c['type'].removeprefix('cpvt_mm.')
            check_names('a type of position_encoding', [name], sorted(POSITION_ENCODINGS.module_dict))
        if 'stage' in c:
            raise TypeError(f'position_encoding sets stage={c["stage"]!r}: remove it, the backbone sets the stage.')
    return PositionEncodings(POSITION_ENCODINGS.build({**c, 'stage': stage, '_scope_': 'cpvt_mm'}) for c in cfgs)
