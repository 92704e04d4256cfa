"""The convolutions of a PEG, depthwise as in the paper, and its ablations; what its arguments must be."""
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.validation import is_sequence_of_ints

CONVS: dict[int, Callable[..., nn.Module]] = {2: nn.Conv2d, 3: nn.Conv3d}


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
    """Sets a convolution to 0; of a separable one the pointwise part, as both would get no gradient if both were 0."""
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


def fused(convs: Iterable[Any]) -> nn.Sequential:
    """Adds the identity to the kernels of convolutions, in place; their new names keep others from loading them."""
    parts = OrderedDict()
    for i, conv in enumerate(convs):
        channels = torch.arange(conv.out_channels)
        center = (channels, channels if conv.groups == 1 else 0, *(side // 2 for side in conv.kernel_size))
        conv.weight.data[center] += 1
        parts[f'fused{i}'] = conv
    return nn.Sequential(parts)
