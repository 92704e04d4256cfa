"""Code paths that differ while torch records code.

Recorded code must run at other sizes, so it must not branch on a size, and must not use cached results.
"""
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TELLS_EXPORT = torch.__version__ >= '2.13'
CACHED = 64  # results of a function: a batch may have images of eight sizes, with seven grids each, keys' included
Args = ParamSpec('Args')
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


class PatchConv2d(nn.Conv2d):
    """A convolution whose stride is its kernel size, over maps or over patches that are cut already.

    Packed images and traced code cut them: torch branches on sizes for 2 x 2 convolutions (`use_mkldnn` in ATen).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Returns `(B, N, C')` from a map `(B, C, H, W)` with whole patches, or from patches `(B, N, side * side * C)`.
        """
        if not isinstance(x, torch.fx.Proxy) and x.ndim == 4:
            return F.conv2d(x, self.weight, self.bias, self.stride).flatten(2).transpose(1, 2)
        return F.linear(x, self.weight.permute(0, 2, 3, 1).flatten(1), self.bias)


def with_contiguous_gradient(x: Tensor) -> Tensor:
    """Returns `x`, whose gradient is copied once; else each linear layer before it would copy a strided gradient."""
    if isinstance(x, Tensor) and x.requires_grad and not is_traced(x):
        x.register_hook(Tensor.contiguous)
    return x


def cached(function: Callable[..., Result]) -> Callable[..., Result]:
    """Decorates a pure function of numbers and a device: its latest 64 results are cached, except in traced code."""

    @functools.lru_cache(CACHED)
    def cached_result(*key: Any) -> Result:
        # A tensor made in inference mode could not be used in training later.
        with torch.inference_mode(False), torch.no_grad():
            return function(*key)

    @functools.wraps(function)
    def call(*key: Any) -> Result:
        if is_traced() or type(torch.empty(0)) is not Tensor:  # inside a FakeTensorMode, tensors hold no data
            return function(*key)
        return cached_result(*key)

    return call


def eager(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Decorates a function that torch.compile leaves to Python, where a graph ends. `torch.compiler.disable` would
    import torch._dynamo at once, which takes a second: here it is called when something is compiled.
    """
    @functools.wraps(function)
    def call(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        here = torch.compiler.disable(function) if torch.compiler.is_compiling() else function
        return here(*args, **kwargs)

    return call
