"""Operators without a compiled kernel for CPUs, against plain formulas and numerical gradients, in float64."""
import itertools
import math
from collections.abc import Callable, Sequence

import mmcv._ext
import pytest
import torch
import torch.nn.functional as F
from mmcv import ops
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction, multi_scale_deformable_attn_pytorch
from torch import Tensor
from torch.autograd import gradcheck

from openmmlab_tools.compat.operators.deformable import _sample
from tests.openmmlab_tools.compat.cases import boxes, normal, uniform

pytestmark = pytest.mark.skipif(mmcv._ext.__file__.endswith('.so'), reason='mmcv has compiled operators')
CLOSE = dict(rtol=0, atol=1e-10)  # float64: some hundred roundings of numbers up to 100
Case = tuple[Callable[..., Tensor], Callable[..., Tensor], Sequence[Tensor]]


def sigmoid_focal(weight: Tensor | None) -> Case:
    target = torch.arange(12) % 6  # 5 is the background
    is_target = F.one_hot(target, 6)[:, :5] == 1

    def formula(x: Tensor) -> Tensor:
        p = torch.where(is_target, x.sigmoid(), 1 - x.sigmoid())
        loss = -torch.where(is_target, .3, .7) * (1 - p) ** 1.5 * p.log()
        return loss if weight is None else loss * weight[target.clamp(max=4)][:, None]

    return lambda x: ops.sigmoid_focal_loss(x, target, 1.5, .3, weight, 'none'), formula, [normal(0, 12, 5) * 4]


def softmax_focal(weight: Tensor | None) -> Case:
    target = torch.arange(12) % 5

    def formula(x: Tensor) -> Tensor:
        p = x.softmax(1).gather(1, target[:, None])[:, 0]
        return (-.3 * (1 - p) ** 1.5 * p.log() * (1 if weight is None else weight[target])).sum()

    return (lambda x: ops.softmax_focal_loss(x.clone(), target, 1.5, .3, weight, 'sum'), formula,
            [normal(0, 12, 5) * 4])


def attention() -> Case:
    shapes, starts = torch.tensor([[4, 3], [2, 2]]), torch.tensor([0, 12])
    return (lambda value, places, weights: MultiScaleDeformableAttnFunction.apply(value, shapes, starts, places,
                                                                                  weights, 64),
            lambda value, *inputs: multi_scale_deformable_attn_pytorch(value, shapes, *inputs),
            [normal(0, 2, 16, 2, 3), uniform(1, 2, 3, 2, 2, 2, 2) * 1.4 - .2, uniform(2, 2, 3, 2, 2, 2)])


def carafe() -> Case:
    def formula(features: Tensor, masks: Tensor) -> Tensor:
        patches = F.unfold(features, 3, padding=1).view(2, 2, 9, 4, 5)  # groups, channels, places
        patches = patches.repeat_interleave(2, 3).repeat_interleave(2, 4)
        return (patches * masks.view(2, 1, 9, 8, 10)).sum(2).view(1, 4, 8, 10)

    return lambda *inputs: ops.carafe(*inputs, 3, 2, 2), formula, [normal(0, 1, 4, 4, 5), uniform(1, 1, 2 * 9, 8, 10)]


def roi_pool() -> Case:
    """The maxima of bins."""
    rois = torch.tensor([[0, 10, 10, 200, 150], [1, -30, -10, 100, 900], [0, 50, 50, 49, 48], [1, 300, 100, 460, 300],
                         [0, 5, 5, 5, 5]]).double()

    def bounds(start: float, end: float, count: int, most: int) -> list[slice]:
        marks = [start + (end - start) * k / count for k in range(count + 1)]
        return [slice(*(min(max(side, 0), most) for side in (math.floor(low), math.ceil(high))))
                for low, high in itertools.pairwise(marks)]

    def formula(x: Tensor) -> Tensor:
        output = x.new_zeros(5, 2, 3, 2)
        for n, (image, *corners) in enumerate(rois.tolist()):
            left, top, right, bottom = (corner / 16 for corner in (*corners[:2], corners[2] + 1, corners[3] + 1))
            if right > left and bottom > top:
                for i, j in itertools.product(range(3), range(2)):
                    part = x[int(image), :, bounds(top, bottom, 3, 10)[i], bounds(left, right, 2, 15)[j]]
                    if part.numel():
                        output[n, :, i, j] = part.flatten(1).max(1)[0]
        return output

    return lambda x: ops.roi_pool(x, rois, (3, 2), 1 / 16), formula, [normal(0, 2, 2, 10, 15)]


def deformable_pool(sampling_ratio: int, moves: bool) -> Case:
    """RoIAlign of each bin, moved by its offset, as a region of its own."""
    rois = torch.cat([torch.tensor([[0.], [1], [1]]), boxes(3, 1, 60)], 1).double()
    x, settings = normal(0, 2, 3, 12, 15), (1 / 8, sampling_ratio)
    if not moves:
        return (lambda x: ops.deform_roi_pool(x, rois, None, (2, 3), *settings, .1),
                lambda x: ops.roi_align(x, rois, (2, 3), *settings, 'avg', True), [x])

    def formula(x: Tensor, offset: Tensor) -> Tensor:
        sides = (rois[:, 3:] - rois[:, 1:3])[:, None]
        bins = torch.cartesian_prod(torch.arange(2), torch.arange(3)).flip(1)  # (x, y)
        size = sides / torch.tensor([3, 2])
        starts = rois[:, None, 1:3] + bins * size + .1 * sides * offset.flatten(2).transpose(1, 2)
        regions = torch.cat([rois[:, None, :1].expand(-1, 6, -1), starts, starts + size], 2).flatten(0, 1).detach()
        return ops.roi_align(x, regions, 1, *settings, 'avg', True).view(3, 2, 3, -1).permute(0, 3, 1, 2)

    return (lambda x, offset: ops.deform_roi_pool(x, rois, offset, (2, 3), *settings, .1), formula,
            [x, normal(1, 3, 2, 2, 3) * .3])


@pytest.mark.parametrize('case, arguments', [
    *((loss, [weight]) for loss in (sigmoid_focal, softmax_focal) for weight in (None, uniform(1, 5).double())),
    (attention, []), (carafe, []), (roi_pool, []),
    *((deformable_pool, [ratio, moves]) for ratio in (0, 2) for moves in (False, True))])
def test_values_are_those_of_a_formula_and_gradients_those_of_differences(case: Callable[..., Case], arguments: list
                                                                          ) -> None:
    function, formula, inputs = case(*arguments)
    leaves = [tensor.double().requires_grad_() for tensor in inputs]
    torch.testing.assert_close(function(*leaves), formula(*leaves), **CLOSE)
    assert gradcheck(function, leaves, fast_mode=True)


def test_masked_convolution() -> None:
    layer = ops.MaskedConv2d(4, 6, 3, padding=1).double().eval()
    x, mask = normal(0, 1, 4, 9, 11).double(), (uniform(1, 1, 9, 11) > .5).double()
    formula = F.conv2d(x, layer.weight, layer.bias, padding=1) * mask[:, None]
    torch.testing.assert_close(layer(x, mask), formula, **CLOSE)


def test_sigmoid_focal_loss_of_large_logits_is_finite() -> None:
    x = torch.tensor([[-200., 200.]], requires_grad=True)
    loss = ops.sigmoid_focal_loss(x, torch.tensor([0]), 2., .25, None, 'none')
    [grad] = torch.autograd.grad(loss.sum(), x)
    # The loss of a sure mistake is the logit, and its slope is one.
    torch.testing.assert_close(loss, torch.tensor([[.25 * 200, .75 * 200]]))
    torch.testing.assert_close(grad, torch.tensor([[-.25, .75]]))


def test_gradients_of_no_regions_are_zero() -> None:
    x, offset = (tensor.double().requires_grad_() for tensor in (normal(0, 2, 3, 12, 15), torch.zeros(0, 2, 2, 3)))
    rois = torch.zeros(0, 5).double()
    for output in (ops.deform_roi_pool(x, rois, offset, (2, 3), 1 / 8, 2, .1), ops.roi_pool(x, rois, (2, 3), 1 / 8),
                   ops.roi_align(x, rois, (2, 3), 1 / 8, 2, 'avg', True)):
        assert output.shape == (0, 3, 2, 3)
        [grad] = torch.autograd.grad(output, x, torch.zeros_like(output))
        assert not grad.any()


@pytest.mark.parametrize('size', [(1, 1), (7, 1), (6, 9)])
def test_points_outside_a_map_have_the_values_and_gradients_of_its_border(size: tuple[int, int]) -> None:
    """Bit for bit, also for points exactly on the border."""
    height, width = size
    image, weights = normal(0, 3, *size).requires_grad_(), normal(2, 3, 200)
    points = uniform(1, 200, 2) * torch.tensor([width + 1, height + 1]) - 1
    points[:4] = torch.tensor([[0, 0], [width - 1, height - 1], [-1, height - 1], [width, 0]])
    points.requires_grad_()
    grid = points / torch.tensor([width - 1, height - 1]).clamp(min=1) * 2 - 1
    border = F.grid_sample(image[None], grid[None, None], padding_mode='border', align_corners=True)[0, :, 0]
    values = _sample(image, points)
    assert torch.equal(values, border)
    for gradient, expected in zip(*(torch.autograd.grad(x, (image, points), weights) for x in (values, border)),
                                  strict=True):
        assert torch.equal(gradient, expected)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    x, offset, weight = (tensor.to(dtype) for tensor in (normal(0, 2, 4, 9, 9), normal(1, 2, 18, 9, 9),
                                                         normal(2, 4, 4, 3, 3)))
    rois = torch.tensor([[0, 1, 1, 7, 8], [1, 0, 2, 3, 5]])
    for function, inputs in ((lambda x: ops.roi_align(x, rois.to(x), 3, 1., 0, 'avg', True), (x,)),
                             (lambda x, o, w: ops.deform_conv2d(x, o, w, 1, 1), (x, offset, weight))):
        assert torch.equal(function(*inputs), function(*(tensor.float() for tensor in inputs)).to(dtype))


def test_a_function_without_a_replacement_raises_when_it_is_called() -> None:
    with pytest.raises(NotImplementedError, match=r'^min_area_polygons has no replacement in openmmlab_tools\.compat, '
                                                  r'and mmcv has no compiled operators here: '
                                                  r'compile mmcv to use it\.$'):
        ops.min_area_polygons(torch.zeros(1, 18))
    with pytest.raises(NotImplementedError, match="pool_mode='max' needs the compiled operators of mmcv"):
        ops.RoIAlign(3, 1., 0, 'max')(torch.zeros(1, 1, 4, 4), torch.zeros(1, 5))
