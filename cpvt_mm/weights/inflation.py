"""Inflates 2D convolution kernels to 3D, for clips."""
from collections.abc import Mapping

from torch import Tensor


def inflate(kernel: Tensor, depth: int) -> Tensor:
    """Inflates a 2D kernel to 3D: the 2D kernel becomes the middle slice in time, the other slices are zero.

    Each frame then gets the same output as an image. I3D (arXiv 1705.07750, section 2.4) repeats the kernel instead, so
    that only a video of equal frames gets the same output.

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
    """Inflates the kernels that are 2D in a file and 3D in the model; also returns a note about them.

    Args:
        weights: Weights of the file, under the model's names.
        wanted: Weights of the model.
    """
    inflated = {name: inflate(tensor, wanted[name].shape[2]) for name, tensor in weights.items()
                if name in wanted and tensor.dim() == 4 and wanted[name].dim() == 5}
    return {**weights, **inflated}, [f'inflated over time: {", ".join(inflated)}'] if inflated else []
