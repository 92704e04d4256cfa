"""Kernels of images, for clips."""
from collections.abc import Mapping

from torch import Tensor


def inflate(kernel: Tensor, depth: int) -> Tensor:
    """Makes a kernel over height and width one over time, too: it is the middle slice, and zeros are around it.

    A frame then gets what it gets as an image. I3D (arXiv 1705.07750, section 2.4) repeats the kernel instead, so that
    a still video does.

    Args:
        kernel: `(C, C', H, W)`.
        depth: Frames that the new kernel spans; odd.

    Returns:
        `(C, C', depth, H, W)`.
    """
    inflated = kernel.new_zeros(*kernel.shape[:2], depth, *kernel.shape[2:])
    inflated[:, :, depth // 2] = kernel
    return inflated


def inflate_kernels(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Inflates the kernels that a model has over time and a file does not; returns a note on them, too.

    Args:
        weights: Weights of the file, under the model's names.
        wanted: Weights of the model.
    """
    inflated = {name: inflate(tensor, wanted[name].shape[2]) for name, tensor in weights.items()
                if name in wanted and tensor.dim() == 4 and wanted[name].dim() == 5}
    return {**weights, **inflated}, [f'inflated over time: {", ".join(inflated)}'] if inflated else []
