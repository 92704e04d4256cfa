"""The contract of position encodings, and a class that runs all encodings of a stage."""
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.packing import Layout

from .logits import encode_logits

# Where an encoding can act: the methods of `PositionEncoding` that a subclass overrides.
POINTS = ('tokens', 'qk_tokens', 'qk', 'bias', 'factors')


@dataclass(frozen=True)
class StageSpec:
    """Describes the blocks that use an encoding: a stage of the pyramid, or the whole plain backbone."""
    embed_dims: int  # channels of a token
    num_heads: int  # attention heads of a block
    depth: int  # number of blocks
    grid: tuple[int, int]  # rows and columns for an image of the backbone's `img_size`

    @property
    def head_dims(self) -> int:
        """Channels of an attention head."""
        return self.embed_dims // self.num_heads


class PositionEncoding(nn.Module):
    """Base class of position encodings. An encoding can act at five points of a stage.

    A subclass overrides the methods that it needs: `tokens`, `qk_tokens`, `qk`, `bias` and `factors`. They receive only
    the `H * W` cells of the grid, without class tokens and other extra tokens. The backbone passes `stage`; configs
    cannot set it. Constructors raise a ValueError for a value that is not allowed.

    Attributes:
        spans_frames (bool): Whether it mixes the frames of a clip, `grid.frames` consecutive images. Defaults to False.
        takes_packed (bool): Whether `tokens` and `qk_tokens` also accept the cells of images with several sizes, `(1,
            T, C)`, and their `Layout` as grid. Defaults to False: they receive images of one size at a time.
    """

    spans_frames = False
    takes_packed = False

    def __init__(self, stage: StageSpec) -> None:
        super().__init__()
        self.stage = stage
        self.register_load_state_dict_pre_hook(_fit_weights)

    def acts_at(self, point: str) -> bool:
        """Returns whether the encoding acts at a point of `POINTS`; called once. Defaults to whether the method is
        overridden.
        """
        return getattr(type(self), point) is not getattr(PositionEncoding, point)

    def acts_after(self, position: int) -> bool:
        """Returns whether `tokens` changes tokens at a position; asked once. Defaults to `acts_at('tokens')`."""
        return self.acts_at('tokens')

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
        """Sets initial values, after the backbone has initialised linear layers and convolutions. Does nothing by
        default.
        """

    def fit_weights(self, weights: dict[str, Tensor], prefix: str) -> None:
        """Adapts weights for another grid or number of dimensions to this encoding, in place; the default adapts none.

        `load_state_dict` and `load_pretrained` call it. `prefix` precedes the encoding's names in `weights`.
        """


def _fit_weights(encoding: PositionEncoding, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
    encoding.fit_weights(state_dict, prefix)


class PositionEncodings(nn.ModuleList):
    """The position encodings of one stage, applied in turn. The `grid.extra` tokens stay unchanged.

    `acting` has for each of `POINTS` the encodings that act there: a block asks no others.
    """

    def __init__(self, parts: Iterable[PositionEncoding] = ()) -> None:
        super().__init__(parts := list(parts))
        self.acting: dict[str, list[Any]] = {  # `PositionEncoding`s
            point: [part for part in parts if part.acts_at(point)] for point in POINTS}
        self.positions = {position for part in parts for position in range(-1, part.stage.depth)
                          if part.acts_after(position)}  # where the tokens change
        self.act_in_attention = any(self.acting[point] for point in ('qk', 'bias', 'factors'))

    def tokens(self, x: Tensor, position: int, grid: Layout) -> Tensor:
        """Encodes the tokens `(B, E + H * W, C)` at a position, -1 or the index of a block; keeps the shape."""
        for encoding in self.acting['tokens']:
            at_once = encoding.takes_packed and not grid.extra
            x = encoding.tokens(x, position, grid) if at_once else grid.each(encoding.tokens, x, position)
        return x

    def qk_tokens(self, x: Tensor, index: int, grid: Layout) -> Tensor:
        """Encodes the tokens for queries and keys of block `index`; returns `x` itself if no encoding does."""
        for encoding in self.acting['qk_tokens']:
            at_once = encoding.takes_packed and not grid.extra
            x = encoding.qk_tokens(x, index, grid) if at_once else grid.each(encoding.qk_tokens, x, index)
        return x

    def attention(self, q: Tensor, k: Tensor, v: Tensor, index: int, grid: Layout, key_grid: Layout
                  ) -> tuple[Tensor, Tensor, Tensor, list[Tensor | None] | None]:
        """Encodes queries and keys of block `index`, `(B, heads, E + H * W, C / heads)`.

        Factors become channels of queries and keys, 0 at extra tokens, and values get as many zeros: fused kernels need
        the same width of all three, some a multiple of 8. Also returns the sum of biases of each group, or None.
        """
        return encode_logits(self.acting, q, k, v, index, grid, key_grid)


def build_position_encodings(cfg: dict[str, Any] | Sequence[dict[str, Any]] | None,
                             stage: StageSpec) -> PositionEncodings:
    """Builds the encodings of one stage from None, one config (`dict(type='PEG', ...)`) or a sequence of configs.

    mmengine raises a TypeError or KeyError for what is no config of a registered encoding.
    """
    cfgs = [] if cfg is None else [cfg] if isinstance(cfg, dict) else cfg
    return PositionEncodings(POSITION_ENCODINGS.build(part, default_args=dict(stage=stage, _scope_='cpvt_mm'))
                             for part in cfgs)
