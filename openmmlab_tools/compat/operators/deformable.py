"""Deformable convolutions, attention and pooling: they read a map at learnt places.

mmcv's wrappers hand over scratch tensors (`columns`, `ones`) and step sizes, which are not needed here.
"""
import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor

from .gradients import fill_gradients, full

__all__ = ['deform_conv_backward_input', 'deform_conv_backward_parameters', 'deform_conv_forward',
           'deform_roi_pool_backward', 'deform_roi_pool_forward', 'modulated_deform_conv_backward',
           'modulated_deform_conv_forward', 'ms_deform_attn_backward', 'ms_deform_attn_forward']

# No offset moves a sample farther: it is outside of any map there. An offset that is not a number goes there, too, as
# in mmcv. torchvision's operator would crash on it.
FARTHEST = 1e6


# Deformable convolution (Dai et al. 2017, arXiv 1703.06211, section 2.1).

def deform_conv_forward(input: Tensor, weight: Tensor, offset: Tensor, output: Tensor, columns: Tensor, ones: Tensor,
                        **settings: int) -> None:
    """Fills `output (B, C', H', W')` from `input (B, C, H, W)` and `offset (B, 2 * G * k * k, H', W')`, y first."""
    output.copy_(_convolve(input, weight, offset, None, None, **_names(settings)))


def deform_conv_backward_input(input: Tensor, offset: Tensor, grad_output: Tensor, grad_input: Tensor,
                               grad_offset: Tensor, weight: Tensor, columns: Tensor, **settings: int) -> None:
    """Fills the gradients of `input` and `offset`."""

    def convolve(input: Tensor, offset: Tensor) -> Tensor:
        return _convolve(input, weight, offset, None, None, **_names(settings))

    fill_gradients([grad_input, grad_offset], convolve, [input, offset], grad_output)


def deform_conv_backward_parameters(input: Tensor, offset: Tensor, grad_output: Tensor, grad_weight: Tensor,
                                    columns: Tensor, ones: Tensor, **settings: int) -> None:
    """Fills the gradient of `weight`."""

    def convolve(weight: Tensor) -> Tensor:  # linear: its gradient is the same at any weight
        return _convolve(input, weight, offset, None, None, **_names(settings))

    fill_gradients([grad_weight], convolve, [torch.zeros_like(grad_weight)], grad_output)


# With modulation (Zhu et al. 2019, arXiv 1811.11168, section 3.2).

def modulated_deform_conv_forward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor, offset: Tensor,
                                  mask: Tensor, output: Tensor, columns: Tensor, *, with_bias: bool,
                                  **settings: int) -> None:
    """Fills `output (B, C', H', W')`, with `mask (B, G * k * k, H', W')` scaling each sample."""
    output.copy_(_convolve(input, weight, offset, mask, bias if with_bias else None, **_names(settings)))


def modulated_deform_conv_backward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor, offset: Tensor,
                                   mask: Tensor, columns: Tensor, grad_input: Tensor, grad_weight: Tensor,
                                   grad_bias: Tensor, grad_offset: Tensor, grad_mask: Tensor, grad_output: Tensor, *,
                                   with_bias: bool, **settings: int) -> None:
    """Fills all gradients."""

    def convolve(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, *bias: Tensor) -> Tensor:
        return _convolve(input, weight, offset, mask, bias[0] if bias else None, **_names(settings))

    optional = with_bias * [(grad_bias, bias)]
    grads, inputs = zip((grad_input, input), (grad_weight, weight), (grad_offset, offset), (grad_mask, mask), *optional,
                        strict=True)
    fill_gradients(grads, convolve, inputs, grad_output)


def _names(settings: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Returns stride, padding and dilation, `(y, x)`, which mmcv's two wrappers name differently."""
    if 'dH' in settings:
        return {name: (settings[f'{short}H'], settings[f'{short}W'])
                for name, short in (('stride', 'd'), ('padding', 'pad'), ('dilation', 'dilation'))}
    return {name: (settings[f'{short}_h'], settings[f'{short}_w'])
            for name, short in (('stride', 'stride'), ('padding', 'pad'), ('dilation', 'dilation'))}


def _convolve(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor | None,
              stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]) -> Tensor:
    size = [(side + 2 * pad - step * (kernel - 1) - 1) // by + 1 for side, kernel, by, pad, step
            in zip(input.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)]
    places = _first(full(offset).nan_to_num(nan=FARTHEST).clamp(-FARTHEST, FARTHEST), size)
    return torchvision.ops.deform_conv2d(
        full(input), places, full(weight), None if bias is None else full(bias), stride, padding, dilation,
        None if mask is None else _first(full(mask), size))


def _first(maps: Tensor, size: list[int]) -> Tensor:
    """Reads maps that are larger than the output as mmcv does, as if they were of its size: DyHead relies on it."""
    batch, channels = maps.shape[:2]
    return maps.flatten(1)[:, :channels * math.prod(size)].reshape(batch, channels, *size)


# Attention (Zhu et al. 2021, arXiv 2010.04159, section 4.1).

def ms_deform_attn_forward(value: Tensor, value_spatial_shapes: Tensor, value_level_start_index: Tensor,
                           sampling_locations: Tensor, attention_weights: Tensor, im2col_step: int) -> Tensor:
    """Returns `(B, Q, heads * C)`: samples of `value`, `(B, sum of H * W, heads, C)`, at places (x, y) from 0 to 1."""
    return _attend(value, value_spatial_shapes, sampling_locations, attention_weights).to(value.dtype)


def ms_deform_attn_backward(value: Tensor, value_spatial_shapes: Tensor, value_level_start_index: Tensor,
                            sampling_locations: Tensor, attention_weights: Tensor, grad_output: Tensor,
                            grad_value: Tensor, grad_sampling_loc: Tensor, grad_attn_weight: Tensor,
                            im2col_step: int) -> None:
    """Fills the gradients of the values, places and weights."""

    def attend(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return _attend(value, value_spatial_shapes, locations, weights)

    fill_gradients([grad_value, grad_sampling_loc, grad_attn_weight], attend,
                   [value, sampling_locations, attention_weights], grad_output)


def _attend(value: Tensor, shapes: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch
    sizes = shapes.tolist()  # one wait for a GPU instead of two a level
    return multi_scale_deformable_attn_pytorch(full(value), sizes, full(locations), full(weights))


# Pooling (Dai et al. 2017, arXiv 1703.06211, section 2.2).

def deform_roi_pool_forward(input: Tensor, rois: Tensor, offset: Tensor, output: Tensor, pooled_height: int,
                            pooled_width: int, spatial_scale: float, sampling_ratio: int, gamma: float) -> None:
    """Fills `output (N, C, h, w)`: RoIAlign whose bins are moved by `gamma * offset (N, 2, h, w)` of the region."""
    output.copy_(_pool(input, offset, rois, (pooled_height, pooled_width), spatial_scale, sampling_ratio, gamma))


def deform_roi_pool_backward(grad_output: Tensor, input: Tensor, rois: Tensor, offset: Tensor, grad_input: Tensor,
                             grad_offset: Tensor, pooled_height: int, pooled_width: int, spatial_scale: float,
                             sampling_ratio: int, gamma: float) -> None:
    """Fills the gradients of `input` and `offset`."""

    def pool(input: Tensor, offset: Tensor) -> Tensor:
        return _pool(input, offset, rois, (pooled_height, pooled_width), spatial_scale, sampling_ratio, gamma)

    fill_gradients([grad_input, grad_offset], pool, [input, offset], grad_output)


def _pool(input: Tensor, offset: Tensor, rois: Tensor, size: tuple[int, int], scale: float, sampling_ratio: int,
          gamma: float) -> Tensor:
    input = full(input)
    rois = rois.to(input.dtype)
    count = rois.new_tensor(size).flip(0)  # (x, y), as all pairs below
    starts, sides = rois[:, 1:3] * scale - .5, (rois[:, 3:] - rois[:, 1:3]) * scale
    steps = (sides / count)[:, None]
    bins = torch.cartesian_prod(*(torch.arange(n, device=rois.device) for n in size)).flip(1)
    corners = starts[:, None] + bins * steps
    if offset.numel():  # (N, 2, h, w)
        corners = corners + gamma * sides[:, None] * full(offset).flatten(2).transpose(1, 2)
    samples = (torch.full_like(sides, sampling_ratio) if sampling_ratio > 0 else sides / count).ceil().long()
    output = input.new_zeros(len(rois), input.shape[1], len(bins))
    groups, group_of = torch.cat([rois[:, :1].long(), samples], 1).unique(dim=0, return_inverse=True)
    for group, (image, across, down) in enumerate(groups.tolist()):  # one image, and as many samples in each bin
        if across > 0 and down > 0:
            at = torch.nonzero(group_of == group).flatten()
            grid = torch.cartesian_prod(*(torch.arange(n, device=rois.device) for n in (down, across))).flip(1)
            share = (grid + .5) / grid.new_tensor([across, down])
            points = corners[at][:, :, None] + share * steps[at][:, :, None]
            output = output.index_put((at,), _sample(input[image], points).mean(-1).permute(1, 0, 2))
    return output.unflatten(2, size)


def _sample(image: Tensor, points: Tensor) -> Tensor:
    """Interpolates a map `(C, H, W)` at `points (..., 2)`; `(C, ...)`, zero farther than a pixel outside."""
    last = points.new_tensor(image.shape[:0:-1]) - 1
    inside = ((points >= -1) & (points <= last + 1)).all(-1)
    # As padding_mode='border', which failed on Apple GPUs in other projects; at the border, too, gradients are zero.
    nearest = torch.where(points > 0, points, 0)
    nearest = torch.where(nearest < last, nearest, last)
    grid = nearest / last.clamp(min=1) * 2 - 1
    values = F.grid_sample(image[None], grid.reshape(1, 1, -1, 2), align_corners=True)
    return values.view(len(image), *points.shape[:-1]) * inside
