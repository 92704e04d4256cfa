"""The Positional Encoding Generator."""
from collections.abc import Sequence

from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS

from ..arguments import check_keywords, check_positive
from ..grid import to_nchw, to_nhwc
from .base import PositionEncoding


@POSITION_ENCODINGS.register_module()
class PEG(PositionEncoding):
    """A zero-padded depthwise convolution over the token grid: `y = x + dwconv(x)`.

    The zeros around the grid are what tells a token its absolute position. From CPVT (arXiv 2102.10882, section
    "Conditional Positional Encodings").

    Args:
        embed_dims: Channels of the stage's tokens.
        num_heads: Attention heads of its blocks (not used).
        depth: Number of its blocks.
        kernel_size: Odd. Defaults to 3.
        positions: The blocks it follows, counted from 0; one convolution each. Every stage must have them.
            Defaults to (0,).
        bias: Whether the convolutions have one. Defaults to True.
        residual: Whether the tokens are added to the convolution's output. Defaults to True.

    Raises:
        ValueError: If `kernel_size` is even or below 1, or `positions` is no sequence of different blocks.
    """

    @check_keywords
    def __init__(self, embed_dims: int, num_heads: int, depth: int, kernel_size: int = 3,
                 positions: Sequence[int] = (0,), bias: bool = True, residual: bool = True) -> None:
        super().__init__(embed_dims, num_heads, depth)
        check_positive('kernel_size', kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(f'kernel_size is {kernel_size}, but must be odd.')
        allowed = range(depth)
        if (not isinstance(positions, Sequence) or not positions or len(set(positions)) < len(positions)
                or any(p not in allowed for p in positions)):
            raise ValueError(f'positions is {positions!r}, but must be a sequence of different blocks of a stage '
                             f'that has {depth}: from 0 to {depth - 1}.')
        self.residual = residual
        self.convs = nn.ModuleDict({
            str(position): nn.Conv2d(embed_dims, embed_dims, kernel_size, padding=kernel_size // 2, groups=embed_dims,
                                     bias=bias)
            for position in positions
        })

    def after_block(self, x: Tensor, index: int) -> Tensor:
        """`(B, H, W, C)` -> `(B, H, W, C)`."""
        if str(index) not in self.convs:
            return x
        encoding = to_nhwc(self.convs[str(index)](to_nchw(x)))
        return x + encoding if self.residual else encoding
