"""Forks of code that torch records for other sizes, which must not branch on a size."""
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

CACHED = 64  # results of a function: a batch may have images of eight sizes, with seven grids each, keys' included

TELLS_EXPORT = torch.__version__ >= '2.13'
Function = TypeVar('Function', bound=Callable[..., Any])
Result = TypeVar('Result')


def is_traced(x: object = None) -> bool:
    """Returns whether torch records the running code; `x`, a tensor of that code, tells if `torch.fx` does."""
    if isinstance(x, torch.fx.Proxy):
        return True
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]  # public, but not re-exported explicitly


def is_exported() -> bool:
    """Returns whether `torch.export` or `torch.jit.trace` records the running code."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # public, but not re-exported explicitly
        return True
    if not hasattr(torch.compiler, 'is_exporting'):  # torch 2.6
        return False
    # Before torch 2.13, is_exporting() is True for torch.compile, too.
    return torch.compiler.is_exporting() and (TELLS_EXPORT or not torch.compiler.is_dynamo_compiling())


def has_size(x: Tensor, dims: slice, size: tuple[int, ...]) -> bool:
    """Returns whether some dimensions of a tensor have this size, so that a step can be left out; False if traced."""
    return not is_traced(x) and x.shape[dims] == size


def eagerly(function: Function) -> Function:
    """Decorates what torch.compile leaves to Python, where a graph ends; exported code records it."""
    outside: Any = torch.compiler.disable(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args) if is_exported() else outside(*args)

    return call  # type: ignore[return-value]  # the arguments are those of the function


def unless_traced(check: Callable[..., None]) -> Callable[..., None]:
    """Decorates a check of `(owner, tensor, ...)`, which recorded code leaves out."""

    @functools.wraps(check)
    def call(owner: object, x: Tensor, *args: Any) -> None:
        if not is_traced(x):
            check(owner, x, *args)

    return call


def has_incomplete_clip(x: Tensor, frames: int) -> bool:
    """Returns whether the last clip of `x` has fewer frames than the others; recorded code assumes that it has not."""
    return not is_traced(x) and len(x) % frames != 0


def patch_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolves patches: `(B, C, H, W)`, `weight` `(C', C, side, side)` -> `(B, C', H / side, W / side)`.

    Images of one patch and traced code have a matrix product: on a CPU, torch branches on sizes for 2 x 2 convolutions
    (`use_mkldnn` in ATen).
    """
    side = weight.shape[-1]
    if not is_traced(x) and x.shape[2:] != (side, side):
        return F.conv2d(x, weight, bias, stride=side)
    height, width = x.shape[2] // side, x.shape[3] // side
    cells = x.permute(0, 2, 3, 1).unflatten(2, (width, side)).unflatten(1, (height, side))
    patches = cells.transpose(2, 3).flatten(3)  # (B, H / side, W / side, side * side * C)
    return F.linear(patches, weight.permute(0, 2, 3, 1).flatten(1), bias).permute(0, 3, 1, 2)


def with_contiguous_gradient(x: Tensor) -> Tensor:
    """Returns `x`, whose gradient is copied once; else each linear layer before it would copy a strided gradient."""
    if not is_traced(x) and x.requires_grad:
        x.register_hook(Tensor.contiguous)
    return x


def cached(function: Callable[..., Result]) -> Callable[..., Result]:
    """Decorates a pure function of numbers and a device to keep its latest results, except in traced code."""

    @functools.lru_cache(CACHED)
    def kept(*key: Any) -> Result:
        # A tensor made in inference mode could not be used in training later.
        with torch.inference_mode(False), torch.no_grad():
            return function(*key)

    @functools.wraps(function)
    def call(*key: Any) -> Result:
        if is_traced() or type(torch.empty(0)) is not Tensor:  # inside a FakeTensorMode, tensors hold no data
            return function(*key)
        return kept(*key)

    return call
