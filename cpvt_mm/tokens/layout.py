"""The methods of a layout of tokens that layers call: of a `Grid`, or of the `Packing` of images of several sizes."""
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    from .grid import Grid


class Cells(Protocol):
    """Where cells lie, as far as an embedding of patches needs to know; shapes are those of `Layout`."""

    def patches(self, x: Tensor, side: int, cell: int = 1) -> 'tuple[Tensor, Layout]':
        """Returns whole patches, zero-padded below and on the right, for `PatchConv2d`; and what `coarser` returns."""

    def convolve(self, conv: nn.Module, x: Tensor, gap: int, stride: int = 1) -> Tensor:
        """Applies a zero-padded convolution to cells; it reaches `gap` rows up and down. Returns cells of `coarser`."""

    def coarser(self, side: int, cell: int = 1) -> 'Layout':
        """Returns the layout of patches of `side` cells, which have the height and width `cell`."""


class Layout(Cells, Protocol):
    """The layout of tokens: `(B, E + H * W, C)` of images of one size, or `(1, T, C)` of packed ones.

    Images of one size are a group. E extra tokens, such as a class token, precede the cells of each image.
    """

    @property
    def extra(self) -> int:
        """The number of extra tokens of each image."""

    @property
    def grids(self) -> 'Sequence[Grid]':
        """The grid of each group."""

    def split(self, x: Tensor, dim: int = 1) -> Sequence[Tensor]:
        """Returns views of each group, `(n, N, C)`; for `dim` 2, that of tokens, `(n, heads, N, C)`."""

    def join(self, parts: Sequence[Tensor], dim: int = 1) -> Tensor:
        """Does the opposite of `split`."""

    def each(self, function: Callable[..., Tensor], x: Tensor, *args: int) -> Tensor:
        """Applies a function of cells `(n, H * W, C)`, `args` and the grid to each group, but not to extra tokens."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor | None] | None, keys: 'Layout',
               scale: float, drop_rate: float) -> Tensor:
        """Returns the attention of queries to the keys of their image, `(B, E + H * W, heads, channels)`.

        Queries, keys and values have heads first, `(B, heads, E + H * W, channels)`. There is a bias of the logits for
        each group. Keys have their own layout.
        """

    def cells(self, x: Tensor) -> Tensor:
        """Returns the tokens without the extra ones."""

    def mean(self, x: Tensor) -> Tensor:
        """Returns the mean of the cells of each image, `(B, C)`; they are unpacked, `(B, H * W, C)`."""

    def count(self, x: Tensor) -> int:
        """Returns the number of clips of tokens; an image is a clip if encodings do not span frames."""

    def draw(self, x: Tensor, keep: float) -> Tensor:
        """Draws 1 / keep with probability `keep`, else 0, for each clip; it can be multiplied with tokens."""

    def part(self, clips: Sequence[int]) -> 'tuple[int, Tensor, Layout]':
        """Returns where the tokens of some clips are: a dimension and their places in it; and the layout of these."""

    def with_grids(self, grids: 'Sequence[Grid]') -> 'Layout':
        """Returns the layout of the same groups of images with other grids."""

    def unpack(self, x: Tensor) -> 'tuple[Tensor, Grid]':
        """Returns the tokens of the batch, `(B, E + H * W, C)`, and their grid.

        For packed images, H and W are those of the largest grids, and tokens outside an image are zero.
        """
