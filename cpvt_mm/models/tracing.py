"""Code that behaves differently while torch traces it.

`torch.compile`, `torch.export` and `torch.jit.trace` record a model and run it again at other sizes. Traced code must
not branch on a size. A compiler would make another graph for each outcome. An exported model would keep the branch that
was taken while tracing.

Two other modules call `is_traced`. `Cached` does so because cached tables cannot be part of a graph. `ExactPadding`
does so because its checks and warnings are for eager code.
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def is_traced() -> bool:
    """Returns whether `torch.compile`, `torch.export` or `torch.jit.trace` records the running code."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]  # public, but not re-exported explicitly


def is_known_to_be(size: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Returns whether two sizes are equal; returns False under tracing, because the size may vary."""
    return not is_traced() and tuple(size) == tuple(wanted)


class PatchConv2d(nn.Conv2d):
    """A convolution over non-overlapping patches; its stride must equal its kernel size.

    Under tracing it is computed as a matrix product. On a CPU, torch branches on the image size for a 2 x 2
    convolution of one image (`use_mkldnn` in ATen). Three of the four stages have such a convolution.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Convolves `(B, C, H, W)` -> `(B, C', H / stride, W / stride)`; the stride must divide both sides."""
        if not is_traced():
            return super().forward(input)
        size, _ = self.kernel_size
        height, width = input.shape[2] // size, input.shape[3] // size
        cells = input.permute(0, 2, 3, 1).unflatten(2, (width, size)).unflatten(1, (height, size))
        patches = cells.transpose(2, 3).flatten(3)  # (B, H / size, W / size, size * size * C)
        return F.linear(patches, self.weight.permute(0, 2, 3, 1).flatten(1), self.bias).permute(0, 3, 1, 2)
