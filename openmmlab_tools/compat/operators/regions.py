"""Pooling of regions. `rois`, `(N, 5)`, contain the index of the image and `(x1, y1, x2, y2)` in pixels of the image.
"""
import torch
import torchvision
from torch import Tensor

from .gradients import fill_gradients, full

__all__ = ['roi_align_backward', 'roi_align_forward', 'roi_pool_backward', 'roi_pool_forward']


def roi_align_forward(input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor,
                      aligned_height: int, aligned_width: int, spatial_scale: float, sampling_ratio: int,
                      pool_mode: int, aligned: bool) -> None:
    """Fills `output (N, C, h, w)` from `input (B, C, H, W)` (He et al. 2017, arXiv 1703.06870, section 3)."""
    if pool_mode == 0:
        raise NotImplementedError("RoIAlign with pool_mode='max' needs the compiled operators of mmcv: use "
                                  "pool_mode='avg'.")
    size = (aligned_height, aligned_width)
    output.copy_(_roi_align(input, rois, size, spatial_scale, sampling_ratio, aligned))


def roi_align_backward(grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor, grad_input: Tensor,
                       aligned_height: int, aligned_width: int, spatial_scale: float, sampling_ratio: int,
                       pool_mode: int, aligned: bool) -> None:
    """Fills `grad_input (B, C, H, W)`."""

    def pool(input: Tensor) -> Tensor:  # linear: its gradient is the same at any input
        return _roi_align(input, rois, (aligned_height, aligned_width), spatial_scale, sampling_ratio, aligned)

    fill_gradients([grad_input], pool, [torch.zeros_like(grad_input)], grad_output)


def _roi_align(input: Tensor, rois: Tensor, size: tuple[int, int], scale: float, sampling_ratio: int, aligned: bool
               ) -> Tensor:
    input = full(input)
    return torchvision.ops.roi_align(input, rois.to(input.dtype), size, scale, sampling_ratio, aligned)


def roi_pool_forward(input: Tensor, rois: Tensor, output: Tensor, argmax: Tensor, pooled_height: int,
                     pooled_width: int, spatial_scale: float) -> None:
    """Fills `output (N, C, h, w)` with maxima, and `argmax` with their places in a map, -1 for an empty bin.

    Source: Girshick 2015, arXiv 1504.08083, section 2.1. Unlike torchvision's operator, mmcv's does not round regions.
    """
    width = input.shape[3]
    argmax.fill_(-1)
    starts, ends = rois[:, 1:3] * spatial_scale, (rois[:, 3:] + 1) * spatial_scale
    steps = (ends - starts) / rois.new_tensor([pooled_width, pooled_height])
    bins = torch.cartesian_prod(torch.arange(pooled_height), torch.arange(pooled_width)).flip(1).to(rois)
    low = (bins * steps[:, None] + starts[:, None]).floor().clamp(min=0).long().tolist()
    high = ((bins + 1) * steps[:, None] + starts[:, None]).ceil().long().tolist()
    for n in torch.nonzero((ends > starts).all(1)).flatten().tolist():
        image = input[int(rois[n, 0])]
        for i, ((x1, y1), (x2, y2)) in enumerate(zip(low[n], high[n], strict=True)):
            row, column = divmod(i, pooled_width)
            patch = image[:, y1:max(y2, 0), x1:max(x2, 0)]
            if patch.numel():
                output[n, :, row, column], index = patch.flatten(1).max(1)
                y, x = index // patch.shape[2] + y1, index % patch.shape[2] + x1
                argmax[n, :, row, column] = (y * width + x).to(argmax.dtype)


def roi_pool_backward(grad_output: Tensor, rois: Tensor, argmax: Tensor, grad_input: Tensor, pooled_height: int,
                      pooled_width: int, spatial_scale: float) -> None:
    """Writes into `grad_input`, `(B, C, H, W)`: each maximum receives the gradient of its bin."""
    index = argmax.flatten(2).long()
    grads = (grad_output.flatten(2) * (index >= 0)).to(grad_input.dtype)
    maps = grad_input.flatten(2)  # contiguous, so this is a view
    for n, image in enumerate(rois[:, 0].long().tolist()):
        maps[image].scatter_add_(1, index[n].clamp(min=0), grads[n])
