"""Counts parameters and floating-point operations of models."""
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from mmengine.config import Config
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, sdpa_flop_count

from openmmlab_runs.loading import build


@dataclass(frozen=True)
class Complexity:
    """Counts of one model at one input size: parameters, trainable or not, and floating-point operations of a forward
    pass.

    A multiply-add counts as two. Convolutions and matrix products are counted, also those of attention, not norms,
    activations and NMS.
    """
    params: int
    flops: int


def _cpu_attention_flops(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *args: object,
                         out_shape: object = None, **kwargs: object) -> int:
    return sdpa_flop_count(query, key, value)


def _cpu_attention_backward_flops(grad: tuple[int, ...], query: tuple[int, ...], key: tuple[int, ...],
                                  value: tuple[int, ...], *args: object, out_shape: object = None,
                                  **kwargs: object) -> int:
    # There are two products for each product of the forward pass. The logits that the kernel recomputes do not count.
    return 2 * sdpa_flop_count(query, key, value)


def _convolution_backward_flops(grad: tuple[int, ...], x: tuple[int, ...], weight: tuple[int, ...], bias: object,
                                stride: object, padding: object, dilation: object, transposed: bool,
                                output_padding: object, groups: int, output_mask: list[bool],
                                out_shape: object = None) -> int:
    return sum(output_mask[:2]) * conv_flop_count(list(x), list(weight), list(grad), transposed)


# torch counts the fused attention of GPUs, but not that of the CPU. It ignores the groups of a convolution in the
# backward pass.
FLOPS = {
    torch.ops.aten.convolution_backward: _convolution_backward_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_attention_backward_flops,
}


def count_flops(function: Callable[[], object]) -> int:
    """Counts operations of matrix products and convolutions, attention included, while `function` runs."""
    with FlopCounterMode(display=False, custom_mapping=FLOPS) as counter:
        function()
    return counter.get_total_flops()


def measure(model: nn.Module, *args: object, **kwargs: object) -> Complexity:
    """Measures the complexity of `model(*args, **kwargs)`, in eval mode and without gradients."""
    with torch.no_grad():
        flops = count_flops(lambda: model.eval()(*args, **kwargs))
    return Complexity(sum(p.numel() for p in model.parameters()), flops)


def measure_config(cfg: Config, shape: tuple[int, int]) -> tuple[Complexity, Complexity]:
    """Measures the model of a config of mmdet, mmseg or mmpretrain on one image of zeros, of `shape` (height, width).

    The weights are random, so the second stage of a two-stage detector gets random proposals.

    Returns:
        The complexity of the backbone, and that of the whole model, both in eval mode.
    """
    model = build(cfg, cfg.model)
    backbone = cast(nn.Module, model.backbone)
    image = torch.zeros(1, getattr(backbone, 'in_channels', 3), *shape)
    return measure(backbone, image), measure(model, image, [data_sample(cfg.default_scope, image)], mode='tensor')


def data_sample(library: str, image: Tensor) -> object:
    """Makes the data sample that `library` needs for a batch of one image, `(1, 3, H, W)`."""
    shape = tuple(image.shape[-2:])
    meta = dict(img_shape=shape, ori_shape=shape, pad_shape=shape, batch_input_shape=shape, scale_factor=(1., 1.))
    if library == 'mmdet':
        from mmdet.structures import DetDataSample as DataSample
    elif library == 'mmpretrain':
        from mmpretrain.structures import DataSample
    else:
        from mmseg.structures import SegDataSample as DataSample
    return DataSample(metainfo=meta)
