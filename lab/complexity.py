"""Counts parameters and floating-point operations of models."""
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, sdpa_flop_count


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
