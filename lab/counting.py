"""Counts the work of a model, operator by operator, on torch's meta device: it needs no time and no memory.

The numbers do not depend on the machine. They are the same for every device that runs these operators one by one.
"""
import cProfile
import pstats
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, sdpa_flop_count

from openmmlab_tools.texts import markdown_table

ATTENTION = 'scaled_dot_product_attention'
# They move no data, but their schema does not say so.
FREE = ('_unsafe_view', 'empty', 'empty_like', 'empty_strided', 'new_empty', 'new_empty_strided')
Shape = tuple[int, ...]
SHOWN = 0.002  # an operator has a row if its share of one candidate's bytes is at least this


def _attention_flops(query: Shape, key: Shape, value: Shape, *args: object, **kwargs: object) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward_flops(grad: Shape, query: Shape, key: Shape, value: Shape, *args: object, **kwargs: object
                              ) -> int:
    # There are two products for each product of the forward pass. The logits that the kernel recomputes do not count.
    return 2 * sdpa_flop_count(query, key, value)


def _convolution_backward_flops(grad: Shape, x: Shape, weight: Shape, *args: Any, **kwargs: object) -> int:
    *_, transposed, _, _, output_mask = args
    return sum(output_mask[:2]) * conv_flop_count(list(x), list(weight), list(grad), transposed)


# torch counts fused attention on GPUs, but not on the CPU. In the backward pass, it ignores that convolutions have
# groups.
FLOPS = {
    torch.ops.aten.convolution_backward: _convolution_backward_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}


def count_flops(function: Callable[[], object]) -> int:
    """Counts operations of matrix products and convolutions, attention included, while `function` runs."""
    with FlopCounterMode(display=False, custom_mapping=FLOPS) as counter:
        function()
    return counter.get_total_flops()


class Work(NamedTuple):
    """The work of a call, by operator: calls that move data, floating-point operations, and bytes moved."""
    calls: Counter[str]
    flops: Counter[str]
    bytes: Counter[str]
    python: int = 0  # functions that Python calls, including built-in functions


def count_calls(function: Callable[[], object]) -> int:
    """Counts the functions that Python calls while a function runs, including built-in functions, with cProfile."""
    profile = cProfile.Profile()
    profile.runcall(function)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def count_work(function: Callable[[], object], fused_attention: bool) -> Work:
    """Counts what a function does on the meta device, also backwards.

    With `fused_attention`, `scaled_dot_product_attention` is one operator. It reads queries, keys, values and a bias,
    and writes the output and one number for each query; backward it reads all of these and the output's gradient.
    Otherwise it is torch's plain one, which stores the attention weights.
    """
    work = Work(Counter(), Counter(), Counter())
    attention = _FuseAttention(work) if fused_attention else nullcontext()
    with FlopCounterMode(display=False, custom_mapping=FLOPS) as flops, _Bytes(work), attention:
        function()
    for operator, number in flops.get_flop_counts().get('Global', {}).items():
        work.flops[_name(str(operator))] += number
    return work


class _Bytes(TorchDispatchMode):
    """Adds the calls and bytes of every operator that moves data."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = _name(func.name())
        if not func.is_view and name not in FREE:
            self.work.calls[name] += 1
            self.work.bytes[name] += _bytes(args, kwargs, result)
        if name == 'convolution' and args[0].is_contiguous(memory_format=torch.channels_last):
            # So do the kernels of CPUs and of cuDNN. On the meta device the result is not channels-last, and the next
            # operators would seem to copy it.
            return result.contiguous(memory_format=torch.channels_last)
        return result


class _FuseAttention(TorchFunctionMode):
    """Replaces `scaled_dot_product_attention` by one operator."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def __torch_function__(self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        bias = (kwargs or {}).get('attn_mask', args[3] if len(args) > 3 else None)
        return _FusedAttention.apply(self.work, *args[:3], bias)


class _FusedAttention(torch.autograd.Function):

    @staticmethod
    def forward(ctx: Any, work: Work, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        batch, heads, length, _ = q.shape
        out = q.new_empty(batch, length, heads, v.shape[-1]).transpose(1, 2)  # in the layout of torch's kernels
        sums = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.work, ctx.tensors = work, (q, k, v, bias)
        ctx.save_for_backward(out, sums)
        work.calls[ATTENTION] += 1
        work.flops[ATTENTION] += sdpa_flop_count(q.shape, k.shape, v.shape)
        work.bytes[ATTENTION] += _bytes(q, k, v, bias, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias = ctx.tensors
        gradients = [None if x is None else torch.empty_like(x) for x in (q, k, v, bias)]
        name = f'{ATTENTION}_backward'
        ctx.work.calls[name] += 1
        ctx.work.flops[name] += _attention_backward_flops(grads[0].shape, q.shape, k.shape, v.shape)
        ctx.work.bytes[name] += _bytes(ctx.tensors, ctx.saved_tensors, grads, gradients)
        return None, *gradients


def _bytes(*values: object) -> int:
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return sum(min(tensor.nbytes, tensor.untyped_storage().nbytes()) for tensor in tensors)  # expand() repeats memory


def _name(operator: str) -> str:
    """Returns the name of an operator without namespace and overload."""
    return operator.rpartition('::')[2].removeprefix('aten.').partition('.')[0]


def to_markdown(works: dict[str, tuple[Work, Work]]) -> str:
    """Writes totals and the bytes of each operator, with fused and with plain attention."""
    first, _ = next(iter(works.values()))
    totals = [[name, f'{fused.flops.total() / 1e9:.1f}', _gigabytes(fused.bytes.total()),
               f'{fused.bytes.total() / first.bytes.total():.3f}x', str(fused.calls.total()), str(fused.python),
               _gigabytes(plain.bytes.total())] for name, (fused, plain) in works.items()]
    shares: defaultdict[str, float] = defaultdict(float)
    for fused, _ in works.values():
        for operator, number in fused.bytes.items():
            shares[operator] = max(shares[operator], number / fused.bytes.total())
    shown = sorted((name for name in shares if shares[name] >= SHOWN), key=lambda name: -shares[name])
    rows = [[name, *(_gigabytes(fused.bytes[name]) for fused, _ in works.values())] for name in shown]
    rest = [fused.bytes.total() - sum(fused.bytes[name] for name in shown) for fused, _ in works.values()]
    rows.append(['others', *map(_gigabytes, rest)])
    return '\n'.join([
        markdown_table(['candidate', 'GFLOP', 'GB', 'GB, relative', 'operators', 'calls', 'GB with plain attention'],
                       totals),
        'GB by operator, with fused attention:', '', markdown_table(['operator', *works], rows)])


def _gigabytes(number: float) -> str:
    return f'{number / 1e9:.2f}'
