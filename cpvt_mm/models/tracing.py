"""All that differs while code is traced, with the reason.

`torch.compile`, `torch.export` and `torch.jit.trace` record a model to run it again at other sizes. A question about a
size would be recorded as well: a compiler makes another graph for each answer, and an exported model keeps the answer
of the size that it was traced at. Two more places ask `is_traced`: `Cached`, since remembered tables cannot be part of
a graph, and `ExactPadding`, since its checks and its warning are for eager code.
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def is_traced() -> bool:
    """Whether the code that runs is recorded."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]  # public, but re-exported without a word


def is_known_to_be(size: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether two sizes are equal, so that nothing has to be done; False while traced, since any size may come."""
    return not is_traced() and tuple(size) == tuple(wanted)


class PatchConv2d(nn.Conv2d):
    """A convolution over patches that do not overlap: build it with a stride that is its kernel size.

    While traced it is a matrix product. For a convolution of one image with a kernel of 2 x 2, torch asks on a CPU how
    large the image is (`use_mkldnn` in ATen), and there is one in three of four stages.
    """

    def forward(self, input: Tensor) -> Tensor:
        """`(B, C, H, W)` -> `(B, C', H / stride, W / stride)`; the stride must divide both sides."""
        if not is_traced():
            return super().forward(input)
        size, _ = self.kernel_size
        height, width = input.shape[2] // size, input.shape[3] // size
        cells = input.permute(0, 2, 3, 1).unflatten(2, (width, size)).unflatten(1, (height, size))
        patches = cells.transpose(2, 3).flatten(3)  # (B, H / size, W / size, size * size * C)
        return F.linear(patches, self.weight.permute(0, 2, 3, 1).flatten(1), self.bias).permute(0, 3, 1, 2)
