"""The conditions that all candidates of a group are measured under."""
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

DTYPES = {'fp32': torch.float32, 'bf16': torch.bfloat16, 'fp16': torch.float16}
MODES = ('forward', 'train')


@dataclass(frozen=True)
class Setting:
    """One group: its candidates take turns, so that what disturbs one disturbs all.

    Attributes:
        mode: 'forward', of a model in eval mode without gradients, or 'train', a step of training.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
        batch_size: Images in a batch.
        dtype: One of DTYPES. Weights are float32 in any case; the others are those of torch's autocast.
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
        """Returns the context in which a model computes in the dtype."""
        return nullcontext() if self.dtype == 'fp32' else torch.autocast(device, DTYPES[self.dtype])
