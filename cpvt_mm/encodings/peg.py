"""The Positional Encoding Generator: its convolutions, depthwise as in the paper, and its ablations."""
from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.validation import check_choice, check_positive, is_sequence_of_ints

from .base import PositionEncoding, StageSpec

CONVS: dict[int, Callable[..., nn.Module]] = {2: nn.Conv2d, 3: nn.Conv3d}

PADDINGS = ('zeros', 'replicate', 'reflect', 'circular')


@POSITION_ENCODINGS.register_module()
class PEG(PositionEncoding):
    """A zero-padded convolution over the token grid, added to the tokens: `y = x + conv(x)`.

    It infers the absolute position from the zero padding at the border (CPVT, arXiv 2102.10882, section "Conditional
    Positional Encodings"); the variants are from the paper's ablations.

    Args:
        ndim: 2: rows and columns of an image. 3: also the frames of a clip (see the backbone's `forward`), zero-padded
            before the first and after the last; weights of `ndim=2` are loaded into the middle slice of the kernels.
            Defaults to 2.
        kernel_size: An odd int, or `ndim` odd ints, the size along time first. Size 1 encodes no position, as a
            control. Defaults to 3.
        conv_type: 'depthwise', 'separable' (depthwise, then pointwise) or 'full'. Defaults to 'depthwise'.
        num_layers: Number of consecutive convolutions at each position, each with its residual. Defaults to 1.
        positions: The blocks after which a PEG is applied, counted from 0; -1: before the first block. Each has its own
            weights. Every stage must have these blocks. Defaults to (0,).
        target: 'tokens'; or 'qk', only the input of queries and keys of the next block. Defaults to 'tokens'.
        trainable: Whether the weights are learnt. False: random buffers, which checkpoints contain. Defaults to True.
        bias: Whether the convolutions have a bias (separable convolutions: in the pointwise part). Defaults to True.
        residual: Whether to add the tokens to the output of the convolution. Defaults to True.
        padding: The values outside of the grid: 'zeros', or 'replicate', 'reflect' or 'circular', the `padding_mode` of
            `nn.Conv2d`. The latter three are controls, because they contain no absolute position. The weights have the
            same shapes. Images of different sizes are then convolved one size at a time. Defaults to 'zeros'.
        init: 'random', or 'zero', which requires `trainable` and `residual`: `conv(x)` starts as 0, so a trained
            backbone returns the same outputs as without the PEG. Defaults to 'random'.
    """

    def __init__(self, stage: StageSpec, ndim: int = 2, kernel_size: int | Sequence[int] = 3,
                 conv_type: Literal['depthwise', 'separable', 'full'] = 'depthwise', num_layers: int = 1,
                 positions: Sequence[int] = (0,), target: Literal['tokens', 'qk'] = 'tokens', trainable: bool = True,
                 bias: bool = True, residual: bool = True,
                 padding: Literal['zeros', 'replicate', 'reflect', 'circular'] = 'zeros',
                 init: Literal['random', 'zero'] = 'random') -> None:
        super().__init__(stage)
        check_choice('ndim', ndim, (2, 3))
        sides = check_kernel_size(kernel_size, ndim)
        check_choice('conv_type', conv_type, ('depthwise', 'separable', 'full'))
        check_choice('target', target, ('tokens', 'qk'))
        for name, value in dict(trainable=trainable, bias=bias, residual=residual).items():
            check_choice(name, value, (False, True))
        check_choice('padding', padding, PADDINGS)
        check_choice('init', init, ('random', 'zero'))
        if init == 'zero' and not (trainable and residual):
            raise ValueError(f"init is 'zero', trainable {trainable} and residual {residual}, but a PEG that starts "
                             'from zero needs both to be True.')
        check_positive('num_layers', num_layers)
        check_positions(positions, stage.depth, target)
        self.spans_frames = ndim == 3
        self.takes_packed = ndim == 2 and padding == 'zeros'  # gaps of zeros part packed images
        self.padding = padding
        self.gaps = sides[-2] // 2, sides[-1] // 2  # how far a kernel reaches over the border, up and to the left
        self.target = target
        self.positions = tuple(positions)
        self.residual = residual
        self.init = init
        self.convs = nn.ModuleDict({
            str(position): nn.ModuleList(make_conv(stage.embed_dims, sides, conv_type, bias, padding)
                                         for _ in range(num_layers))
            for position in positions})
        if not trainable:
            to_buffers(self)

    def acts_at(self, point: str) -> bool:
        return point == ('tokens' if self.target == 'tokens' else 'qk_tokens')

    def acts_after(self, position: int) -> bool:
        return self.target == 'tokens' and position in self.positions

    def tokens(self, x: Tensor, position: int, grid: Any) -> Tensor:  # a `Layout`, with `ndim=3` a `Grid`
        if position not in self.positions:
            return x
        if self.padding != 'zeros':
            self.check_is_large_enough(grid)
        convs: Any = self.convs[str(position)]
        for conv in convs:
            encoding = convolve_clips(conv, x, grid) if self.spans_frames else grid.convolve(conv, x, self.gaps[0])
            x = x + encoding if self.residual else encoding
        return x

    def check_is_large_enough(self, grid: Grid) -> None:
        """Raises a ValueError if the grid has fewer cells than `reflect` or `circular` padding repeats."""
        spare = 1 if self.padding == 'reflect' else 0  # the border itself is not reflected
        if self.padding == 'replicate' or grid.is_traced:
            return
        if any(side < gap + spare for side, gap in zip((grid.height, grid.width), self.gaps, strict=True)):
            least = ' x '.join(str(gap + spare) for gap in self.gaps)
            raise ValueError(f'A grid of {grid.height} x {grid.width} cells is too small for a PEG with padding='
                             f'{self.padding!r}, which needs at least {least}: use larger images, a smaller '
                             "kernel_size, or padding='zeros'.")

    def qk_tokens(self, x: Tensor, index: int, grid: Any) -> Tensor:
        return self.tokens(x, index - 1, grid)

    def init_parameters(self) -> None:
        for conv in (conv for layers in self.convs.values() for conv in layers.children() if self.init == 'zero'):
            zero(conv)

    def fit_weights(self, weights: dict[str, Tensor], prefix: str) -> None:
        """Inflates 2D kernels to 3D, see `inflate`."""
        for name, weight in self.state_dict(prefix=prefix).items():
            if weight.dim() == 5 and name in weights and weights[name].dim() == 4:
                weights[name] = inflate(weights[name], weight.shape[2])


def make_conv(channels: int, kernel_size: tuple[int, ...], conv_type: str, bias: bool,
              padding: str) -> nn.Module:
    """Builds a padded convolution that keeps the grid size, with as many dimensions as `kernel_size`.

    For d channels and n cells, it has d * n ('depthwise'), d * n + d * d ('separable') or d * d * n ('full') weights.
    """

    def conv(kernel_size: tuple[int, ...], groups: int, bias: bool) -> nn.Module:
        gaps = tuple(side // 2 for side in kernel_size)
        return CONVS[len(kernel_size)](channels, channels, kernel_size, padding=gaps, groups=groups, bias=bias,
                                       padding_mode=padding)

    if conv_type == 'separable':
        pointwise = (1,) * len(kernel_size)
        return nn.Sequential(conv(kernel_size, channels, bias=False), conv(pointwise, 1, bias))
    return conv(kernel_size, channels if conv_type == 'depthwise' else 1, bias)


def check_kernel_size(kernel_size: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    """Returns the kernel size along each dimension; raises a ValueError unless each is an odd int."""
    sides = (kernel_size,) * ndim if isinstance(kernel_size, int) else kernel_size
    if not is_sequence_of_ints(sides) or len(sides) != ndim or any(side < 1 or side % 2 == 0 for side in sides):
        raise ValueError(f'kernel_size is {kernel_size!r}, but must be an odd int of at least 1, or {ndim} of them: '
                         f'ndim is {ndim}.')
    return tuple(sides)


def check_positions(positions: Sequence[int], depth: int, target: str) -> None:
    """Raises a ValueError unless positions are different blocks, or -1; with `target` 'qk', a block must follow."""
    last = depth - 1 if target == 'tokens' else depth - 2
    if (not is_sequence_of_ints(positions) or not positions or len(set(positions)) < len(positions)
            or any(p not in range(-1, last + 1) for p in positions)):
        raise ValueError(f'positions is {positions!r}, but must be a sequence of different blocks, from -1 (before '
                         f'the first) to {last}: there are {depth}, and target is {target!r}.')


def to_buffers(module: nn.Module) -> None:
    """Turns all parameters into buffers: checkpoints contain them, but they cannot be trained or unfrozen."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, parameter.detach())


def zero(conv: nn.Module) -> None:
    """Sets a convolution to 0. In a separable convolution, it sets the pointwise part only: with both at 0, no gradient
    flows.
    """
    for parameter in (conv[-1] if isinstance(conv, nn.Sequential) else conv).parameters():
        nn.init.zeros_(parameter)


def inflate(kernel: Tensor, depth: int) -> Tensor:
    """Inflates a 2D kernel `(C, C', H, W)` to `(C, C', depth, H, W)`: it becomes the middle slice, the others are zero.

    Each frame then gets the same output as an image. I3D (arXiv 1705.07750, section 2.4) repeats the kernel instead.
    """
    inflated = kernel.new_zeros(*kernel.shape[:2], depth, *kernel.shape[2:])
    inflated[:, :, depth // 2] = kernel
    return inflated


def convolve_clips(conv: nn.Module, x: Tensor, grid: Grid) -> Tensor:
    """Applies a 3D convolution to the cells of clips of T frames, `grid.frames`: `(N * T, H * W, C)`, keeps the shape.
    """
    clips = x.unflatten(1, (grid.height, grid.width)).unflatten(0, (-1, grid.frames)).movedim(-1, 1)  # (N, C, T, H, W)
    return conv(clips).movedim(1, -1).flatten(2, 3).flatten(0, 1)
