"""Subjects of a benchmark: the conditions, and a model with the measured call."""
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from mmengine.optim import OptimWrapper
from torch import Tensor, nn
from torch.utils.benchmark import timer

from cpvt_mm.tokens.grid import Size

from .candidates import Candidate

DTYPES = {'fp32': torch.float32, 'tf32': torch.float32, 'bf16': torch.bfloat16, 'fp16': torch.float16}
MODES = ('forward', 'train')


@contextmanager
def allow_tf32(is_allowed: bool) -> Iterator[None]:
    """Allows or forbids a GPU to compute float32 products and convolutions in TF32, with mantissas of 10 bits."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision('high' if is_allowed else 'highest')
    torch.backends.cudnn.allow_tf32 = is_allowed
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


@dataclass(frozen=True)
class Setting:
    """The conditions of one group. Its candidates are timed in turns, so that disturbances affect all alike.

    The mode is 'forward', in eval mode without gradients, or 'train'. Weights are always float32: the dtype tf32 lets a
    GPU round factors, bf16 and fp16 use autocast. Images of several `sizes` are padded to `height` and `width`.
    """
    mode: str
    height: int
    width: int
    batch_size: int
    dtype: str
    threads: int
    sizes: tuple[Size, ...] = ()  # height and width of each image without padding; empty: all fill the batch

    def __str__(self) -> str:
        images = self.names_of_sizes or f'{self.batch_size} x {self.height} x {self.width}'
        return f'{self.mode}, {images}, {self.dtype}, {self.threads} thread{"s" if self.threads > 1 else ""}'

    @property
    def names_of_sizes(self) -> str:
        """Several sizes, as in '800x1216+480x640'; empty if there are none."""
        return '+'.join(f'{height}x{width}' for height, width in self.sizes)

    @property
    def valid_sizes(self) -> tuple[Size, ...]:
        """Height and width of each image without padding."""
        return self.sizes or ((self.height, self.width),) * self.batch_size

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of a batch of images."""
        return self.batch_size, 3, self.height, self.width

    def autocast(self, device: str) -> AbstractContextManager[None]:
        """Returns the autocast context of a forward pass for bf16 and fp16; does nothing for other dtypes."""
        return nullcontext() if DTYPES[self.dtype] == torch.float32 else torch.autocast(device, DTYPES[self.dtype])

    def precision(self) -> AbstractContextManager[None]:
        """Returns the context that allows TF32 only for the dtype tf32, also in the backward pass."""
        return allow_tf32(self.dtype == 'tf32')


@dataclass(frozen=True)
class Step:
    """A repeatable forward pass or training step of a model, with the optimizer that updates it, if any.

    Attributes:
        is_comparable: Whether the weights, and so the outputs, are those of PyramidCPVT.
        has_torch_memory: Whether torch holds the weights, so that memory can be measured.
    """
    model: nn.Module
    run: Callable[[], object]
    optim_wrapper: OptimWrapper | None = None
    is_comparable: bool = False
    has_torch_memory: bool = True

    def held_bytes(self) -> int:
        """Returns the bytes of weights, buffers and optimizer state, which stay between two calls; not of gradients."""
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in self._held()}
        return sum(storages.values())

    def _held(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from self.model.buffers()
        if self.optim_wrapper:
            for state in self.optim_wrapper.optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))


class Subject(Protocol):
    """Builds the measured models: the backbones alone, or whole models with them."""

    @property
    def device(self) -> str:
        """The device of the models: 'cpu' or 'cuda'."""

    def step(self, candidate: Candidate, setting: Setting) -> Step:
        """Builds a candidate and its measured call, or raises CannotMeasure."""

    def flops(self, candidate: Candidate, setting: Setting) -> int | None:
        """Counts the operations of a call, without recomputation; None if they cannot be counted."""

    def max_abs_diff(self, step: Step, setting: Setting) -> float | None:
        """Returns the largest difference to the outputs of PyramidCPVT; None if the outputs are not comparable."""


def seconds(call: Callable[[], object]) -> float:
    """Times one call in seconds, with its work on an accelerator; torch's `Timer` makes two more calls each time."""
    start = timer()
    call()
    return timer() - start
