"""The conditions of a measurement, which are the same for all candidates of a group."""
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

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

    Attributes:
        mode: 'forward', in eval mode without gradients, or 'train', a training step.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
        batch_size: Images in a batch.
        dtype: One of DTYPES. Weights are always float32. tf32 lets a GPU round factors, see `allow_tf32`; bf16 and fp16
            use torch's autocast.
        threads: Number of CPU threads.
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
        """Returns the autocast context of a forward pass for bf16 and fp16; does nothing for other dtypes."""
        return nullcontext() if DTYPES[self.dtype] == torch.float32 else torch.autocast(device, DTYPES[self.dtype])

    def precision(self) -> AbstractContextManager[None]:
        """Returns the context that allows TF32 only for the dtype tf32, also in the backward pass."""
        return allow_tf32(self.dtype == 'tf32')
