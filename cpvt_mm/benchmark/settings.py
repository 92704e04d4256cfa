"""Under what all candidates of a group are measured."""
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from cpvt_mm.errors import UserError

DTYPES = {'fp32': torch.float32, 'bf16': torch.bfloat16, 'fp16': torch.float16}
MODES = ('forward', 'train')


@dataclass(frozen=True)
class Setting:
    """One group: its candidates take turns, so that what disturbs one disturbs all.

    Attributes:
        mode: 'forward', of a model in eval mode without gradients, or 'train', a step of training.
        height: Of the images, in pixels.
        width: Of the images, in pixels.
        batch_size: Images.
        dtype: One of DTYPES. Weights are float32 in any case; the others are those of torch's autocast.
        threads: Of the CPU.
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
        """Of a batch of images."""
        return self.batch_size, 3, self.height, self.width

    def autocast(self, device: str) -> AbstractContextManager[None]:
        """The context in which a model computes in the dtype."""
        return nullcontext() if self.dtype == 'fp32' else torch.autocast(device, DTYPES[self.dtype])


def parse_size(text: str) -> tuple[int, int]:
    """Reads `HEIGHTxWIDTH`, or one number for a square.

    Raises:
        UserError: If it is neither.
    """
    match = re.fullmatch(r'([1-9]\d*)(?:x([1-9]\d*))?', text)
    if not match:
        raise UserError(f'size {text!r} is neither a side nor HEIGHTxWIDTH in pixels: write 512 or 800x1216.')
    return int(match[1]), int(match[2] or match[1])
