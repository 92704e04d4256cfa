"""The conditions that all candidates of a group are measured under."""
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

DTYPES = {'fp32': torch.float32, 'tf32': torch.float32, 'bf16': torch.bfloat16, 'fp16': torch.float16}
MODES = ('forward', 'train')


@contextmanager
def allow_tf32(is_allowed: bool) -> Iterator[None]:
    """Lets a GPU compute products and convolutions of float32 in TF32, with factors of 10 bits, or forbids it."""
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
    """One group: its candidates take turns, so that what disturbs one disturbs all.

    Attributes:
        mode: 'forward', of a model in eval mode without gradients, or 'train', a step of training.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
        batch_size: Images in a batch.
        dtype: One of DTYPES. Weights are float32 in any case. With tf32 a GPU may round factors, see `allow_tf32`; bf16
            and fp16 are those of torch's autocast.
        threads: Threads on the CPU.
    """
    mode: str
    height: int
    width: int
    batch_size: int
    dtype: str
    threads: int

    def __str__(self) -> str:
        return (f'{self.mode}, {self.batch_size} x {self.height} x {self.width}, {self.dtype}, {self.threads} thread'
                f'{"s" if self.threads > 1 else ""}')

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of a batch of images."""
        return self.batch_size, 3, self.height, self.width

    def autocast(self, device: str) -> AbstractContextManager[None]:
        """Returns the context in which a forward pass computes in the dtype, bf16 or fp16."""
        return nullcontext() if DTYPES[self.dtype] == torch.float32 else torch.autocast(device, DTYPES[self.dtype])

    def precision(self) -> AbstractContextManager[None]:
        """Returns the context in which products of float32 have the dtype's precision, also those of gradients."""
        return allow_tf32(self.dtype == 'tf32')
