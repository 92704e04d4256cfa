"""Calls of mmcv's operators, whose results `python -m lab mmcv_reference` stored with compiled ones.

Inputs come from numpy's seeds, which draw the same numbers everywhere.
"""
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from mmcv import ops
from torch import Tensor

Results = dict[str, Tensor]
Case = tuple[str, Callable[..., Results], Sequence[object]]  # name, function, arguments


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.asarray(np.random.RandomState(seed).randn(*shape))).float()


def uniform(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.RandomState(seed).rand(*shape)).float()


def integers(seed: int, high: int, count: int) -> Tensor:
    return torch.from_numpy(np.random.RandomState(seed).randint(0, high, count))


def boxes(count: int, seed: int, size: float) -> Tensor:
    """Random boxes `(count, 4)` whose corners begin within `size`."""
    corner, sides = uniform(seed, count, 2) * size, uniform(seed + 1, count, 2) * size * .4 + 1
    return torch.cat([corner, corner + sides], 1)


def with_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> Results:
    """The output of a function, and the gradients of its inputs for a random gradient of the output."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    output = function(*leaves)
    grads = torch.autograd.grad(output, leaves, normal(9, *output.shape).to(output.dtype))
    return {'output': output.detach(), **{f'grad{i}': grad for i, grad in enumerate(grads)}}


def roi_align(aligned: bool, ratio: int, size: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Results:
    regions = boxes(12, 1, 150)
    regions[:4] = torch.tensor([[5, 5, 5, 5], [-30, -20, 40, 50], [150, 90, 400, 300], [900, 900, 950, 999]])
    rois = torch.cat([integers(2, 2, 12)[:, None].float(), regions], 1)
    layer = ops.RoIAlign(size, 1 / 8, ratio, 'avg', aligned)
    return with_gradients(lambda x: layer(x, rois.to(x.dtype)), normal(3, 2, 2, 13, 19).to(dtype))


def of_candidates(count: int, ties: bool) -> Iterator[Case]:
    """Cases of boxes, scores and classes; with `ties`, both boxes and scores repeat."""
    actual, scores, classes = boxes(count, count + 1, 800), uniform(count, count), integers(5, 9, count)
    if ties:
        actual, scores, classes = (boxes(count, count + 1, 60).round(), (scores * 8).round() / 8,
                                   integers(5, 3, count))

    def suppress(offset: int) -> Results:
        few, first = ops.nms(actual, scores, .3, score_threshold=.3, max_num=5)
        return {'kept': ops.nms(actual, scores, .3, offset=offset)[1], 'few': few, 'first': first}

    def suppress_by_class(agnostic: bool, split: int = 10_000) -> Results:
        settings = {'type': 'nms', 'iou_threshold': .5, 'split_thr': split}
        return {'kept': ops.batched_nms(actual, scores, classes, settings, agnostic)[1]}

    def match() -> Results:
        groups = ops.nms_match(torch.cat([actual, scores[:, None]], 1), .5)
        return {'members': torch.cat(groups), 'sizes': torch.tensor([len(group) for group in groups])}

    def soft(method: str) -> Results:
        dets, kept = ops.soft_nms(actual, scores, .3, method=method, min_score=.05, offset=int(ties))
        return {'dets': dets, 'kept': kept}

    name = f'{count}{" ties" if ties else ""}'
    yield from ((f'nms {name} {offset=}', suppress, (offset,)) for offset in (0, 1))
    if count:
        yield from ((f'batched_nms {name} {agnostic=}', suppress_by_class, (agnostic,)) for agnostic in (False, True))
        yield f'batched_nms {name} in parts', suppress_by_class, (False, 40)
        yield f'nms_match {name}', match, ()
        yield from ((f'soft_nms {method} {name}', soft, (method,)) for method in ('naive', 'linear', 'gaussian'))


def at_the_threshold(threshold: float) -> Results:
    """Overlaps of exactly 0.3, 0.5 and 0.7 in real numbers, which float32 and float64 round to different sides."""
    actual = torch.tensor([[0., 0, 10, 10], [0, 0, 10, 3], [0, 0, 10, 7], [20, 0, 30, 10], [20, 0, 30, 5]])
    return {'kept': ops.nms(actual, torch.tensor([.9, .8, .7, .6, .5]), threshold)[1]}


# Groups, groups of offsets, stride, padding, dilation, kernel.
CONVOLUTIONS = {'plain': (1, 1, 1, 1, 1, 3), 'groups': (2, 2, 2, 1, 1, 3), 'dilated': (1, 4, 1, 2, 2, 3),
                'pointwise': (4, 1, 1, 0, 1, 1)}


def convolve(name: str, modulated: bool, bias: bool = False) -> Results:
    groups, offset_groups, stride, padding, dilation, kernel = CONVOLUTIONS[name]
    height, width = ((side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for side in (9, 7))
    offset = normal(1, 2, 2 * offset_groups * kernel ** 2, height, width) * 3
    x, weight = normal(0, 2, 8, 9, 7), normal(2, 8, 8 // groups, kernel, kernel) * .1
    settings = stride, padding, dilation, groups, offset_groups
    if not modulated:
        return with_gradients(lambda x, o, w: ops.deform_conv2d(x, o, w, *settings), x, offset, weight)
    mask = uniform(3, 2, offset_groups * kernel ** 2, height, width)
    more = [normal(4, 8)] if bias else []
    return with_gradients(lambda x, o, m, w, *b: ops.modulated_deform_conv2d(x, o, m, w, *(b or [None]), *settings),
                          x, offset, mask, weight, *more)


def offsets_that_are_not_finite() -> Results:
    offset = torch.zeros(1, 18, 5, 5)
    offset[0, 0, 0, 0], offset[0, 3, 1, 1], offset[0, 5, 2, 2] = np.nan, np.inf, -1e30
    return {'output': ops.deform_conv2d(normal(0, 1, 4, 5, 5), offset, normal(1, 4, 4, 3, 3), 1, 1)}


def _cases() -> Iterator[Case]:
    for aligned in (True, False):
        for ratio in (0, 2):
            yield f'roi_align {aligned=} {ratio=}', roi_align, (aligned, ratio, (3, 5))
    yield 'roi_align_float16 7', roi_align, (True, 0, 7, torch.float16)
    yield 'roi_align_float64 7', roi_align, (True, 0, 7, torch.float64)
    yield 'roi_align of no regions', lambda: {
        'output': ops.RoIAlign(7, 1 / 8, 0)(normal(0, 1, 4, 8, 8), torch.zeros(0, 5))}, ()
    for count in (0, 1, 50, 300):
        for ties in (False, True):
            yield from of_candidates(count, ties)
    for threshold in (.3, .5, .7):
        yield f'nms at {threshold}', at_the_threshold, (threshold,)
    for mode in ('iou', 'iof'):
        for aligned in (False, True):
            yield f'bbox_overlaps {mode} {aligned=}', lambda *settings: {
                'ious': ops.bbox_overlaps(boxes(7, 1, 60), boxes(7, 4, 60), *settings)}, (mode, aligned, int(aligned))
    for name in CONVOLUTIONS:
        yield f'deform_conv {name}', convolve, (name, False)
        yield f'modulated_deform_conv {name}', convolve, (name, True)
    yield 'modulated_deform_conv bias', convolve, ('plain', True, True)
    # DyHead hands over offsets and masks that are larger than the output.
    yield 'modulated_deform_conv larger', with_gradients, (
        lambda x, o, m, w: ops.modulated_deform_conv2d(x, o, m, w, None, 1, 1), normal(0, 2, 8, 5, 5),
        normal(1, 2, 18, 9, 9), uniform(2, 2, 9, 9, 9), normal(3, 8, 8, 3, 3) * .1)
    yield 'deform_conv not finite', offsets_that_are_not_finite, ()
    yield 'deform_conv weight', with_gradients, (  # which alone learns
        lambda w: ops.deform_conv2d(normal(0, 2, 8, 9, 9), normal(1, 2, 18, 9, 9), w, 1, 1), normal(2, 8, 8, 3, 3))
    for kind in ('collect', 'distribute'):
        for size in ((3, 3), (9, 13)):
            yield f'psa_mask {kind} {size}', with_gradients, (
                ops.PSAMask(kind, size), normal(3, 2, size[0] * size[1], 5, 7))


CASES = {name: (function, arguments) for name, function, arguments in _cases()}


def run(name: str) -> Results:
    function, arguments = CASES[name]
    return function(*arguments)
