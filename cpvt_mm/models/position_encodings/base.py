"""The interface of position encodings, and their combination."""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS

from ..arguments import check_names
from ..grid import Grid, on_clips, on_grid


@dataclass(frozen=True)
class StageSpec:
    """The blocks that an encoding is for: a stage of the pyramid, or the whole plain backbone.

    Attributes:
        embed_dims: Channels of a token.
        num_heads: Attention heads of a block.
        depth: Number of blocks.
        grid: Rows and columns of tokens for an image of the backbone's `img_size`: the default grid of tables.
    """
    embed_dims: int
    num_heads: int
    depth: int
    grid: tuple[int, int]

    @property
    def head_dims(self) -> int:
        """Channels of an attention head."""
        return self.embed_dims // self.num_heads


class PositionEncoding(nn.Module):
    """Base class of position encodings: adds position information to the tokens of one stage, at any of five points.

    Each point has a method. A subclass overrides the methods that it needs. The default `attention_bias` returns None;
    the other default methods return their argument itself. Position encodings skip class tokens.

    Frames of clips are passed as images. An encoding that mixes the frames of a clip sets `spans_frames`. Its
    `at_entry`, `after_block` and `qk_tokens` then get clips, `(N, T, H, W, C)`.

    Args:
        stage: The blocks it is for. The backbone passes this argument; configs cannot set it.

    Attributes:
        spans_frames (bool): Whether the encoding gets clips. Defaults to False.
    """

    spans_frames = False

    def __init__(self, stage: StageSpec) -> None:
        super().__init__()
        self.stage = stage

    def at_entry(self, x: Tensor) -> Tensor:
        """Encodes the tokens before the first block: `(B, H, W, C)` -> `(B, H, W, C)`."""
        return x

    def after_block(self, x: Tensor, index: int) -> Tensor:
        """Encodes the tokens after block `index`, counted from 0: `(B, H, W, C)` -> `(B, H, W, C)`."""
        return x

    def qk_tokens(self, x: Tensor, index: int) -> Tensor:
        """Encodes tokens for queries and keys, but not values, of block `index`: `(B, H, W, C)` -> `(B, H, W, C)`."""
        return x

    def encode_qk(self, x: Tensor, grid: Grid) -> Tensor:
        """Encodes the queries of every block, and in a second call the keys.

        Args:
            x: Queries or keys, `(B, heads, H * W, C / heads)`.
            grid: The grid of `x`, H x W. If the key grid is coarser, `grid.cell_height` and `grid.cell_width` give its
                cell size in query tokens.

        Returns:
            A tensor of the shape of `x`.
        """
        return x

    def attention_bias(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> Tensor | None:
        """Computes a bias that is added to the logits of attention.

        Args:
            q: Queries, `(B, heads, H * W, C / heads)`.
            index: Index of the block, counted from 0.
            grid: The grid of the queries, H x W.
            key_grid: The grid of the keys, H' x W'.

        Returns:
            A tensor that can be broadcast to `(B, heads, H * W, H' * W')`, or None.
        """
        return None

    def block_of(self, name: str) -> int:
        """Returns the block of a parameter, for layer-wise learning-rate decay; -1 if it precedes all blocks.

        Args:
            name: The name of the parameter in this encoding.
        """
        return -1


class PositionEncodings(nn.ModuleList):
    """Zero or more position encodings of one stage, applied in turn at each of the five points.

    Tokens are a grid, `(B, H, W, C)`; or, with `grid`, a sequence that starts with E class tokens,
    `(B, E + H * W, C)`. Class tokens stay unchanged. Images may be frames: each `num_frames` consecutive images are a
    clip.
    """

    def __iter__(self) -> Iterator[PositionEncoding]:
        return super().__iter__()  # type: ignore[return-value]  # ModuleList has no type parameter for its modules

    @property
    def spans_frames(self) -> bool:
        return any(encoding.spans_frames for encoding in self)

    def at_entry(self, x: Tensor, num_frames: int = 1) -> Tensor:
        """Encodes the tokens before the first block: `(B, H, W, C)` -> `(B, H, W, C)`."""
        for encoding in self:
            x = _at_point(encoding, encoding.at_entry, x, None, num_frames)
        return x

    def after_block(self, x: Tensor, index: int, grid: Grid | None = None, num_frames: int = 1) -> Tensor:
        """Encodes the tokens after block `index`; returns a tensor of the shape of `x`."""
        for encoding in self:
            x = _at_point(encoding, partial(encoding.after_block, index=index), x, grid, num_frames)
        return x

    def qk_tokens(self, x: Tensor, index: int, grid: Grid | None = None, num_frames: int = 1) -> Tensor:
        """Encodes the tokens for queries and keys of block `index`; returns a tensor of the shape of `x`."""
        for encoding in self:
            x = _at_point(encoding, partial(encoding.qk_tokens, index=index), x, grid, num_frames)
        return x

    def encode_qk(self, x: Tensor, grid: Grid) -> Tensor:
        """Encodes queries or keys, `(B, heads, E + H * W, C / heads)`; returns a tensor of the same shape."""
        for encoding in self:
            extra, tokens = x.split([x.shape[2] - grid.size, grid.size], dim=2)
            encoded = encoding.encode_qk(tokens, grid)
            if encoded is not tokens:
                x = torch.cat([extra, encoded], dim=2) if extra.shape[2] else encoded
        return x

    def attention_bias(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> Tensor | None:
        """Returns the sum of the biases in the dtype of `q`, or None; it is 0 from and to class tokens.

        The sum can be broadcast to `(B, heads, E + H * W, E + H' * W')`.
        """
        num_extra = q.shape[2] - grid.size
        total = None
        for encoding in self:
            bias = encoding.attention_bias(q[:, :, num_extra:], index, grid, key_grid)
            if bias is not None:
                total = bias if total is None else total + bias
        if total is None:
            return None
        return F.pad(total.to(q.dtype), (num_extra, 0, num_extra, 0)) if num_extra else total.to(q.dtype)

    def block_of(self, name: str) -> int:
        """Returns the block of a parameter, by its name in this list; -1 if it precedes all blocks."""
        index, _, rest = name.partition('.')
        return list(self)[int(index)].block_of(rest)


def _at_point(encoding: PositionEncoding, point: Callable[[Tensor], Tensor], x: Tensor, grid: Grid | None,
              num_frames: int) -> Tensor:
    """Applies an encoding to tokens at one of its points, as grids or as clips of grids."""
    return on_grid(partial(on_clips, point, num_frames) if encoding.spans_frames else point, x, grid)


def build_position_encodings(cfg: dict[str, Any] | Sequence[dict[str, Any]] | None,
                             stage: StageSpec) -> PositionEncodings:
    """Builds the position encodings of one stage from the `position_encoding` argument of a backbone.

    Args:
        cfg: None, one config (`dict(type='PEG', ...)`) or a sequence of configs that are combined.
        stage: The blocks that the encodings are for.

    Raises:
        TypeError: If `cfg` has another type, or sets the stage.
        ValueError: If a type is not registered.
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
