"""The conditions of a benchmark, and a model with the measured call."""
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn
from torch.utils.benchmark import timer

from cpvt_mm.tokens.grid import Size

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
        """Returns the context of a forward pass: autocast for bf16 and fp16."""
        return nullcontext() if DTYPES[self.dtype] == torch.float32 else torch.autocast(device, DTYPES[self.dtype])

    def precision(self) -> AbstractContextManager[None]:
        """Returns the context that allows TF32 only for the dtype tf32, also in the backward pass."""
        return allow_tf32(self.dtype == 'tf32')


@dataclass(frozen=True)
class Step:
    """A repeatable forward pass or training step of a model, and whether its weights are those of PyramidCPVT."""
    model: nn.Module
    run: Callable[[], object]
    is_comparable: bool = False

    def held_bytes(self) -> int:
        """Returns the bytes of weights and buffers, which stay between two calls; not of gradients."""
        storages = [tensor.untyped_storage() for tensor in chain(self.model.parameters(), self.model.buffers())]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def seconds(call: Callable[[], object]) -> float:
    """Times one call in seconds, with its work on an accelerator; torch's `Timer` makes two more calls each time."""
    start = timer()
    call()
    return timer() - start
