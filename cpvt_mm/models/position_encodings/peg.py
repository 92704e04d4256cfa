"""The Positional Encoding Generator."""
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS

from ..arguments import check_keywords, check_names, check_positive, is_sequence_of_ints
from ..grid import to_nchw, to_nhwc
from .base import PositionEncoding, StageSpec

CONV_TYPES = ('depthwise', 'separable', 'full')
TARGETS = ('tokens', 'qk')


def make_conv(channels: int, kernel_size: int, conv_type: str, bias: bool) -> nn.Module:
    """A zero-padded convolution that keeps the size of the grid.

    With d channels and kernel size k its weights are, without bias: depthwise d * k * k, separable (depthwise, then
    pointwise) d * k * k + d * d, full d * d * k * k.
    """

    def conv(kernel_size: int, groups: int, bias: bool) -> nn.Conv2d:
        return nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2, groups=groups, bias=bias)

    if conv_type == 'separable':
        return nn.Sequential(conv(kernel_size, channels, bias=False), conv(1, 1, bias))
    return conv(kernel_size, channels if conv_type == 'depthwise' else 1, bias)


def fix_parameters(module: nn.Module) -> None:
    """Turns all parameters into buffers: a checkpoint keeps them, no optimizer sees them, nothing unfreezes them."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, parameter.detach())


@POSITION_ENCODINGS.register_module()
class PEG(PositionEncoding):
    """A zero-padded convolution over the token grid, added to the tokens: `y = x + conv(x)`.

    PEG infers the absolute position from the zero padding at the border. From CPVT (arXiv 2102.10882, section
    "Conditional Positional Encodings"; the variants are from its ablations).

    Args:
        stage: The blocks it serves.
        kernel_size: Odd. 1 has parameters but sees no neighbour, so it encodes nothing: a control. Defaults to 3.
        conv_type: 'depthwise', 'separable' (depthwise, then pointwise) or 'full'. Defaults to 'depthwise'.
        num_layers: Encodings in turn at each position, each with its residual. Defaults to 1.
        positions: The blocks it follows, counted from 0; -1: before the first. One encoding each. Every stage must
            have these blocks. Defaults to (0,).
        target: 'tokens', or 'qk': the tokens stay as they are, and the encoded ones feed only the queries and keys of
            the block that follows. Defaults to 'tokens'.
        trainable: Whether the weights are learnt. False: they are random buffers, which a checkpoint keeps and no
            optimizer sees. Defaults to True.
        bias: Whether the convolutions have one (a separable one: after the pointwise). Defaults to True.
        residual: Whether the tokens are added to the convolution's output. Defaults to True.

    Raises:
        ValueError: If a value is not allowed, or no block follows an encoding of target 'qk'.
    """

    @check_keywords
    def __init__(self, stage: StageSpec, kernel_size: int = 3,
                 conv_type: Literal['depthwise', 'separable', 'full'] = 'depthwise', num_layers: int = 1,
                 positions: Sequence[int] = (0,), target: Literal['tokens', 'qk'] = 'tokens', trainable: bool = True,
                 bias: bool = True, residual: bool = True) -> None:
        super().__init__(stage)
        check_positive('kernel_size', kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(f'kernel_size is {kernel_size}, but must be odd.')
        check_names('a conv_type of PEG', [conv_type], CONV_TYPES)
        check_names('a target of PEG', [target], TARGETS)
        check_positive('num_layers', num_layers)
        # Queries and keys are those of the next block, so there must be one.
        last = stage.depth - 1 if target == 'tokens' else stage.depth - 2
        if (not is_sequence_of_ints(positions) or not positions or len(set(positions)) < len(positions)
                or any(p not in range(-1, last + 1) for p in positions)):
            raise ValueError(f'positions is {positions!r}, but must be a sequence of different blocks, from -1 (before '
                             f'the first) to {last}: there are {stage.depth}, and target is {target!r}.')
        self.target = target
        self.residual = residual
        self.convs = nn.ModuleDict({
            str(position): nn.ModuleList(
                make_conv(stage.embed_dims, kernel_size, conv_type, bias) for _ in range(num_layers))
            for position in positions
        })
        if not trainable:
            fix_parameters(self)

    def at_entry(self, x: Tensor) -> Tensor:
        return self._encode(x, -1) if self.target == 'tokens' else x

    def after_block(self, x: Tensor, index: int) -> Tensor:
        return self._encode(x, index) if self.target == 'tokens' else x

    def qk_tokens(self, x: Tensor, index: int) -> Tensor:
        return self._encode(x, index - 1) if self.target == 'qk' else x

    def block_of(self, name: str) -> int:
        position = int(name.split('.')[1])  # convs.<position>.<layer>
        return position if self.target == 'tokens' else position + 1

    def _encode(self, x: Tensor, position: int) -> Tensor:
        """`(B, H, W, C)` -> `(B, H, W, C)`; `x` itself where there is no encoding."""
        if str(position) not in self.convs:
            return x
        for conv in self.convs[str(position)].children():
            encoding = to_nhwc(conv(to_nchw(x)))
            x = x + encoding if self.residual else encoding
        return x
