"""The Positional Encoding Generator."""
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from cpvt_mm.models.grid import Grid, clips_to_tokens, to_clips, to_map, to_tokens
from cpvt_mm.models.validation import check_choice, check_positive, is_sequence_of_ints
from cpvt_mm.registry import POSITION_ENCODINGS

from .base import PositionEncoding, StageSpec

CONVS: dict[int, Callable[..., nn.Module]] = {2: nn.Conv2d, 3: nn.Conv3d}
CONV_TYPES = ('depthwise', 'separable', 'full')
TARGETS = ('tokens', 'qk')


def make_conv(channels: int, kernel_size: tuple[int, ...], conv_type: str, bias: bool) -> nn.Module:
    """Builds a zero-padded convolution that keeps the grid size, with as many dimensions as `kernel_size`.

    For d channels and a kernel of n cells, the number of weights without bias is:

    - depthwise: d * n.
    - separable (depthwise, then pointwise): d * n + d * d.
    - full: d * d * n.
    """

    def conv(kernel_size: tuple[int, ...], groups: int, bias: bool) -> nn.Module:
        padding = tuple(side // 2 for side in kernel_size)
        return CONVS[len(kernel_size)](channels, channels, kernel_size, padding=padding, groups=groups, bias=bias)

    if conv_type == 'separable':
        pointwise = (1,) * len(kernel_size)
        return nn.Sequential(conv(kernel_size, channels, bias=False), conv(pointwise, 1, bias))
    return conv(kernel_size, channels if conv_type == 'depthwise' else 1, bias)


def check_kernel_size(kernel_size: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    """Returns the kernel size along each dimension; raises a ValueError unless each is an odd int."""
    sides = (kernel_size,) * ndim if isinstance(kernel_size, int) else kernel_size
    if not is_sequence_of_ints(sides) or len(sides) != ndim:
        raise ValueError(f'kernel_size is {kernel_size!r}, but must be an int or {ndim} of them: ndim is {ndim}.')
    for side in sides:
        check_positive('kernel_size', side)
        if side % 2 == 0:
            raise ValueError(f'kernel_size is {kernel_size!r}, but must be odd.')
    return tuple(sides)


def fix_parameters(module: nn.Module) -> None:
    """Turns all parameters into buffers: checkpoints contain them, but they cannot be trained or unfrozen."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, parameter.detach())


def inflate(kernel: Tensor, depth: int) -> Tensor:
    """Inflates a 2D kernel to 3D: the 2D kernel becomes the middle slice in time, the other slices are zero.

    Each frame then gets the same output as an image. I3D (arXiv 1705.07750, section 2.4) repeats the kernel instead, so
    that only a video of equal frames gets the same output.

    Args:
        kernel: `(C, C', H, W)`.
        depth: Frames that the new kernel spans; odd.

    Returns:
        `(C, C', depth, H, W)`.
    """
    inflated = kernel.new_zeros(*kernel.shape[:2], depth, *kernel.shape[2:])
    inflated[:, :, depth // 2] = kernel
    return inflated


@POSITION_ENCODINGS.register_module()
class PEG(PositionEncoding):
    """A zero-padded convolution over the token grid, added to the tokens: `y = x + conv(x)`.

    PEG infers the absolute position from the zero padding at the border. Source: CPVT (arXiv 2102.10882, section
    "Conditional Positional Encodings"); the variants are from its ablations.

    Args:
        stage: The blocks it is for.
        ndim: 2: a 2D convolution over rows and columns of an image. 3: a 3D convolution that also spans the frames of a
            clip (see the backbone's `forward`), zero-padded before the first and after the last frame. It loads
            weights of `ndim=2` into the middle slice of its kernels, so that each frame is first encoded like an image.
            Defaults to 2.
        kernel_size: An odd int, or `ndim` odd ints, the size along time first. Size 1 has parameters but sees no
            neighbours, so it encodes no position; use it as a control. Defaults to 3.
        conv_type: 'depthwise', 'separable' (depthwise, then pointwise) or 'full'. Defaults to 'depthwise'.
        num_layers: Number of consecutive convolutions at each position, each with its residual. Defaults to 1.
        positions: The blocks after which the PEG is applied, counted from 0; -1: before the first block. Each position
            has its own weights. Every stage must have these blocks. Defaults to (0,).
        target: 'tokens' encodes the tokens. 'qk' leaves them unchanged and encodes only the input of queries and keys
            of the next block. Defaults to 'tokens'.
        trainable: Whether the weights are learnt. False: they are random buffers, which checkpoints contain but
            optimizers do not train. Defaults to True.
        bias: Whether the convolutions have a bias (a separable one: in the pointwise part). Defaults to True.
        residual: Whether to add the tokens to the output of the convolution. Defaults to True.
        init: 'random'; or 'zero', so that `conv(x)` is 0 until it is trained. A backbone with trained weights and such
            a PEG gives the same outputs as without. Defaults to 'random'.

    Raises:
        ValueError: If a value is not allowed, `target` is 'qk' and no block follows a position, or `init` is 'zero' and
            `trainable` or `residual` is False.
    """

    def __init__(self, stage: StageSpec, ndim: int = 2, kernel_size: int | Sequence[int] = 3,
                 conv_type: Literal['depthwise', 'separable', 'full'] = 'depthwise', num_layers: int = 1,
                 positions: Sequence[int] = (0,), target: Literal['tokens', 'qk'] = 'tokens', trainable: bool = True,
                 bias: bool = True, residual: bool = True, init: Literal['random', 'zero'] = 'random') -> None:
        super().__init__(stage)
        check_choice('ndim', ndim, CONVS)
        sides = check_kernel_size(kernel_size, ndim)
        check_choice('conv_type', conv_type, CONV_TYPES)
        check_choice('target', target, TARGETS)
        for name, value in dict(trainable=trainable, bias=bias, residual=residual).items():
            check_choice(name, value, (False, True))
        check_choice('init', init, ('random', 'zero'))
        if init == 'zero' and not (trainable and residual):
            raise ValueError(f"init is 'zero', trainable {trainable} and residual {residual}, but a PEG that starts "
                             'from zero needs both to be True.')
        check_positive('num_layers', num_layers)
        # target='qk' encodes queries and keys of the next block, so there must be one.
        last = stage.depth - 1 if target == 'tokens' else stage.depth - 2
        if (not is_sequence_of_ints(positions) or not positions or len(set(positions)) < len(positions)
                or any(p not in range(-1, last + 1) for p in positions)):
            raise ValueError(f'positions is {positions!r}, but must be a sequence of different blocks, from -1 (before '
                             f'the first) to {last}: there are {stage.depth}, and target is {target!r}.')
        self.spans_frames = ndim == 3
        self.target = target
        self.residual = residual
        self.init = init
        self.convs = nn.ModuleDict({
            str(position): nn.ModuleList(
                make_conv(stage.embed_dims, sides, conv_type, bias) for _ in range(num_layers))
            for position in positions
        })
        if not trainable:
            fix_parameters(self)

    def tokens(self, x: Tensor, position: int, grid: Grid, target: str = 'tokens') -> Tensor:
        if target != self.target or str(position) not in self.convs:
            return x
        x = to_clips(x, grid) if self.spans_frames else to_map(x, grid)
        for conv in self.convs[str(position)].children():
            x = x + conv(x) if self.residual else conv(x)
        return clips_to_tokens(x) if self.spans_frames else to_tokens(x)

    def qk_tokens(self, x: Tensor, index: int, grid: Grid) -> Tensor:
        return self.tokens(x, index - 1, grid, target='qk')

    def block_of(self, name: str) -> int:
        position = int(name.split('.')[1])  # convs.<position>.<layer>
        return position if self.target == 'tokens' else position + 1

    def init_parameters(self) -> None:
        if self.init == 'zero':
            for layers in self.convs.values():
                for conv in layers.children():
                    # Of a separable convolution, the pointwise part: if both were 0, neither would get a gradient.
                    last = conv[-1] if isinstance(conv, nn.Sequential) else conv
                    for parameter in last.parameters():
                        nn.init.zeros_(parameter)

    def fuse(self) -> None:
        """Adds 1 to the weight of each cell for itself: `x + conv(x)` becomes one convolution.

        A separable convolution stays as it is. The fused weights have other names, so that nothing takes them for the
        weights of `x + conv(x)`.
        """
        for position, layers in self.convs.items():
            convs = [layer for layer in layers.children() if isinstance(layer, nn.Conv2d | nn.Conv3d)]
            if not self.residual or not convs:  # separable ones are a Sequential
                return
            for conv in convs:
                channels = torch.arange(conv.out_channels)
                center = (channels, channels if conv.groups == 1 else 0, *(side // 2 for side in conv.kernel_size))
                conv.weight.data[center] += 1
            self.convs[position] = nn.Sequential(OrderedDict((f'fused{i}', conv) for i, conv in enumerate(convs)))
        self.residual = False

    def fit_weights(self, weights: dict[str, Tensor], prefix: str) -> None:
        """Inflates 2D kernels to 3D, see `inflate`."""
        for name, own in self.state_dict(prefix=prefix).items():
            if own.dim() == 5 and name in weights and weights[name].dim() == 4:
                weights[name] = inflate(weights[name], own.shape[2])
