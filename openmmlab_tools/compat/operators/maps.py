"""Operators on whole maps: upsampling by CARAFE, masked convolution, and the masks of PSANet."""
import torch
import torch.nn.functional as F
from torch import Tensor

from .gradients import fill_gradients, full

__all__ = ['carafe_backward', 'carafe_forward', 'carafe_naive_backward', 'carafe_naive_forward',
           'masked_col2im_forward', 'masked_im2col_forward', 'psamask_backward', 'psamask_forward']


# CARAFE (Wang et al. 2019, arXiv 1905.02188, section 3.2).

def carafe_forward(features: Tensor, masks: Tensor, rfeatures: Tensor, routput: Tensor, rmasks: Tensor,
                   output: Tensor, kernel_size: int, group_size: int, scale_factor: int) -> None:
    """Fills `output (B, C, s * H, s * W)`: at each place a kernel from `masks (B, groups * k * k, s * H, s * W)`."""
    rfeatures.copy_(features)  # which is all that the backward pass gets
    carafe_naive_forward(features, masks, output, kernel_size, group_size, scale_factor)


def carafe_backward(top_grad: Tensor, rfeatures: Tensor, masks: Tensor, rtop_grad: Tensor, rbottom_grad_hs: Tensor,
                    rbottom_grad: Tensor, rmask_grad: Tensor, bottom_grad: Tensor, mask_grad: Tensor,
                    kernel_size: int, group_size: int, scale_factor: int) -> None:
    """Fills the gradients of the features and masks."""
    carafe_naive_backward(top_grad, rfeatures, masks, bottom_grad, mask_grad, kernel_size, group_size, scale_factor)


def carafe_naive_forward(features: Tensor, masks: Tensor, output: Tensor, kernel_size: int, group_size: int,
                         scale_factor: int) -> None:
    """Fills `output` as `carafe_forward` does."""
    output.copy_(_reassemble(features, masks, kernel_size, group_size, scale_factor))


def carafe_naive_backward(top_grad: Tensor, features: Tensor, masks: Tensor, bottom_grad: Tensor, mask_grad: Tensor,
                          kernel_size: int, group_size: int, scale_factor: int) -> None:
    """Fills the gradients of the features and masks."""

    def reassemble(features: Tensor, masks: Tensor) -> Tensor:
        return _reassemble(features, masks, kernel_size, group_size, scale_factor)

    fill_gradients([bottom_grad, mask_grad], reassemble, [features, masks], top_grad)


def _reassemble(features: Tensor, masks: Tensor, kernel: int, groups: int, scale: int) -> Tensor:
    batch, channels, height, width = features.shape
    padded = F.pad(full(features), [kernel // 2] * 4)
    weights = full(masks).view(batch, groups, 1, kernel, kernel, height, scale, width, scale)
    output = features.new_zeros(batch, groups, channels // groups, height, scale, width, scale, dtype=padded.dtype)
    for y in range(kernel):
        for x in range(kernel):
            moved = padded[:, :, y:y + height, x:x + width]
            output = output + moved.reshape(batch, groups, -1, height, 1, width, 1) * weights[:, :, :, y, x]
    return output.view(batch, channels, height * scale, width * scale)


# Convolution at the places of a mask.

def masked_im2col_forward(im: Tensor, mask_h_idx: Tensor, mask_w_idx: Tensor, col: Tensor, kernel_h: int,
                          kernel_w: int, pad_h: int, pad_w: int) -> None:
    """Fills `col (C * k * k, M)` with the neighbourhoods of M places in `im (1, C, H, W)`."""
    padded = F.pad(im[0], [pad_w, pad_w, pad_h, pad_h])
    rows = mask_h_idx + torch.arange(kernel_h, device=im.device)[:, None, None]
    columns = mask_w_idx + torch.arange(kernel_w, device=im.device)[:, None]
    col.copy_(padded[:, rows, columns].flatten(0, 2))


def masked_col2im_forward(col: Tensor, mask_h_idx: Tensor, mask_w_idx: Tensor, im: Tensor, height: int, width: int,
                          channels: int) -> None:
    """Writes `col (C, M)` to M places in `im (1, C, H, W)`."""
    im[0, :, mask_h_idx, mask_w_idx] = col


# PSANet (Zhao et al. 2018, section 3.3).

def psamask_forward(input: Tensor, output: Tensor, psa_type: int, num_: int, h_feature: int, w_feature: int,
                    h_mask: int, w_mask: int, half_h_mask: int, half_w_mask: int) -> None:
    """Fills `output (B, H * W, H, W)` from masks `input (B, h * w, H, W)` around each place.

    `psa_type` 0 collects, 1 distributes, which swaps the places.
    """
    output.copy_(_spread(input, psa_type, (h_mask, w_mask), (half_h_mask, half_w_mask)))


def psamask_backward(grad_output: Tensor, grad_input: Tensor, psa_type: int, num_: int, h_feature: int,
                     w_feature: int, h_mask: int, w_mask: int, half_h_mask: int, half_w_mask: int) -> None:
    """Fills `grad_input (B, h * w, H, W)`."""

    def spread(input: Tensor) -> Tensor:
        return _spread(input, psa_type, (h_mask, w_mask), (half_h_mask, half_w_mask))

    fill_gradients([grad_input], spread, [grad_input], grad_output)


def _spread(input: Tensor, psa_type: int, mask: tuple[int, int], half: tuple[int, int]) -> Tensor:
    batch, _, height, width = input.shape
    # Where the mask around (y, x) holds the place (i, j): (i, 1, y, 1) and (1, j, 1, x).
    rows, columns = (torch.arange(side, device=input.device) for side in (height, width))
    i = (rows[:, None] - rows + half[0])[:, None, :, None]
    j = (columns[:, None] - columns + half[1])[None, :, None, :]
    inside = (i >= 0) & (i < mask[0]) & (j >= 0) & (j < mask[1])
    index = ((i * mask[1] + j) * inside).view(1, height * width, height, width)
    spread = input.gather(1, index.expand(batch, -1, -1, -1)) * inside.view_as(index)
    return spread.flatten(2).transpose(1, 2).reshape_as(spread) if psa_type else spread
