"""Operators without a compiled kernel for CPUs, against plain formulas: sums written as loops, in float64."""
import itertools
import math
from collections.abc import Iterator

import mmcv._ext
import pytest
import torch
import torch.nn.functional as F
from mmcv import ops
from torch import Tensor

from tests.openmmlab_compat.cases import boxes, normal, uniform

pytestmark = pytest.mark.skipif(mmcv._ext.__file__.endswith('.so'), reason='mmcv has compiled operators')
CLOSE = dict(rtol=0, atol=1e-10)  # float64: some hundred roundings of numbers up to 100


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.double().requires_grad_() for tensor in tensors]


def assert_same(ours: Tensor, formula: Tensor, *inputs: Tensor) -> None:
    """Compares values, and gradients by all inputs."""
    torch.testing.assert_close(ours, formula, **CLOSE)
    weight = normal(7, *ours.shape).double()
    torch.testing.assert_close(torch.autograd.grad(ours, inputs, weight), torch.autograd.grad(formula, inputs, weight),
                               **CLOSE)


@pytest.mark.parametrize('weighted', [False, True])
def test_focal_losses(weighted: bool) -> None:
    [x] = leaves(normal(0, 40, 5) * 4)
    target = torch.arange(40) % 6  # 5 is the background
    weight = uniform(1, 5).double() if weighted else None
    one_hot = F.one_hot(target, 6)[:, :5]
    p = torch.where(one_hot == 1, x.sigmoid(), 1 - x.sigmoid())
    formula = -torch.where(one_hot == 1, .3, .7) * (1 - p) ** 1.5 * p.log()
    formula = formula * weight[target.clamp(max=4)][:, None] if weighted else formula
    assert_same(ops.sigmoid_focal_loss(x, target, 1.5, .3, weight, 'none'), formula, x)
    target = target % 5
    p = x.softmax(1).gather(1, target[:, None])[:, 0]
    formula = -.3 * (1 - p) ** 1.5 * p.log() * (weight[target] if weighted else 1)
    assert_same(ops.softmax_focal_loss(x.clone(), target, 1.5, .3, weight, 'sum'), formula.sum(), x)


def test_sigmoid_focal_loss_of_large_logits_is_finite() -> None:
    x = torch.tensor([[-200., 200.]], requires_grad=True)
    loss = ops.sigmoid_focal_loss(x, torch.tensor([0]), 2., .25, None, 'none')
    [grad] = torch.autograd.grad(loss.sum(), x)
    # The loss of a sure mistake is the logit, and its slope is one.
    torch.testing.assert_close(loss, torch.tensor([[.25 * 200, .75 * 200]]))
    torch.testing.assert_close(grad, torch.tensor([[-.25, .75]]))


def places(height: int, width: int, y: Tensor, x: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Neighbours of a point in a map, with their bilinear weights."""
    top, left = math.floor(y.detach()), math.floor(x.detach())
    for row, column in itertools.product((top, top + 1), (left, left + 1)):
        if 0 <= row < height and 0 <= column < width:
            yield row, column, (1 - (y - row).abs()) * (1 - (x - column).abs())


def test_multi_scale_deformable_attention() -> None:
    from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction
    shapes, starts = torch.tensor([[4, 3], [2, 2]]), torch.tensor([0, 12])
    value, locations, weights = leaves(normal(0, 2, 16, 2, 3), uniform(1, 2, 3, 2, 2, 2, 2) * 1.4 - .2,
                                       uniform(2, 2, 3, 2, 2, 2))
    ours = MultiScaleDeformableAttnFunction.apply(value, shapes, starts, locations, weights, 64)
    sums = [[[[] for _ in range(2)] for _ in range(3)] for _ in range(2)]
    for b, q, head, level, point in itertools.product(range(2), range(3), range(2), range(2), range(2)):
        height, width = shapes[level].tolist()
        x, y = locations[b, q, head, level, point] * torch.tensor([width, height]) - .5
        weight = weights[b, q, head, level, point]
        sums[b][q][head] += [weight * share * value[b, starts[level] + row * width + column, head]
                             for row, column, share in places(height, width, y, x)]
    formula = torch.stack([torch.stack([torch.cat([sum(s, torch.zeros(3)) for s in query]) for query in image])
                           for image in sums])
    assert_same(ours, formula, value, locations, weights)


def test_carafe() -> None:
    features, masks = leaves(normal(0, 1, 4, 4, 5), uniform(1, 1, 2 * 9, 8, 10))
    ours = ops.carafe(features, masks, 3, 2, 2)
    formula = torch.zeros_like(ours)
    for channel, y, x, i, j in itertools.product(range(4), range(8), range(10), range(3), range(3)):
        row, column = y // 2 + i - 1, x // 2 + j - 1
        if 0 <= row < 4 and 0 <= column < 5:
            weight = masks[0, channel // 2 * 9 + i * 3 + j, y, x]
            formula[0, channel, y, x] += features[0, channel, row, column] * weight
    assert_same(ours, formula, features, masks)


def test_masked_convolution() -> None:
    layer = ops.MaskedConv2d(4, 6, 3, padding=1).double().eval()
    x, mask = normal(0, 1, 4, 9, 11).double(), (uniform(1, 1, 9, 11) > .5).double()
    formula = F.conv2d(x, layer.weight, layer.bias, padding=1) * mask[:, None]
    torch.testing.assert_close(layer(x, mask), formula, **CLOSE)


ROIS = torch.tensor([[0, 10, 10, 200, 150], [1, -30, -10, 100, 900], [0, 50, 50, 49, 48], [1, 300, 100, 460, 300],
                     [0, 5, 5, 5, 5]]).double()


def test_roi_pool_takes_the_maxima_of_bins() -> None:
    [x] = leaves(normal(0, 2, 3, 20, 30))
    ours = ops.roi_pool(x, ROIS, (7, 5), 1 / 16)
    formula = torch.zeros_like(ours)
    for n, (image, *corners) in enumerate(ROIS.tolist()):
        left, top, right, bottom = (corner / 16 for corner in (*corners[:2], corners[2] + 1, corners[3] + 1))
        if right <= left or bottom <= top:
            continue
        for row, column in itertools.product(range(7), range(5)):
            rows = slice(*(min(max(round_(top + (bottom - top) * k / 7), 0), 20)
                           for round_, k in ((math.floor, row), (math.ceil, row + 1))))
            columns = slice(*(min(max(round_(left + (right - left) * k / 5), 0), 30)
                              for round_, k in ((math.floor, column), (math.ceil, column + 1))))
            if x[int(image), 0, rows, columns].numel():
                formula[n, :, row, column] = x[int(image), :, rows, columns].flatten(1).max(1)[0]
    assert_same(ours, formula, x)


@pytest.mark.parametrize('sampling_ratio', [0, 2])
def test_deformable_roi_pooling(sampling_ratio: int) -> None:
    rois = torch.cat([torch.tensor([[0.], [1], [1]]), boxes(3, 1, 60)], 1).double()
    x, offset = leaves(normal(0, 2, 3, 12, 15), normal(1, 3, 2, 2, 3) * .3)
    ours = ops.deform_roi_pool(x, rois, offset, (2, 3), 1 / 8, sampling_ratio, .1)
    bins = []
    for n, (image, *corners) in enumerate(rois.tolist()):
        left, top, right, bottom = (corner / 8 - .5 for corner in corners)
        width, height = right - left, bottom - top
        down, across = sampling_ratio or math.ceil(height / 2), sampling_ratio or math.ceil(width / 3)
        for row, column in itertools.product(range(2), range(3)):
            value = torch.zeros(3).double()
            for i, j in itertools.product(range(down), range(across)):
                y = top + height * (.1 * offset[n, 1, row, column] + (row + (i + .5) / down) / 2)
                x_ = left + width * (.1 * offset[n, 0, row, column] + (column + (j + .5) / across) / 3)
                if -1 <= y <= 12 and -1 <= x_ <= 15:
                    for r, c, share in places(12, 15, y.clamp(0, 11), x_.clamp(0, 14)):
                        value = value + share * x[int(image), :, r, c]
            bins.append(value / (across * down))
    formula = torch.stack(bins).view(3, 2, 3, 3).permute(0, 3, 1, 2)
    assert_same(ours, formula, x, offset)
    # Without offsets it is RoIAlign.
    assert_same(ops.deform_roi_pool(x, rois, None, (2, 3), 1 / 8, sampling_ratio, .1),
                ops.roi_align(x, rois, (2, 3), 1 / 8, sampling_ratio, 'avg', True), x)


def test_gradients_of_no_regions_are_zero() -> None:
    x, offset = leaves(normal(0, 2, 3, 12, 15), torch.zeros(0, 2, 2, 3))
    rois = torch.zeros(0, 5).double()
    for output in (ops.deform_roi_pool(x, rois, offset, (2, 3), 1 / 8, 2, .1), ops.roi_pool(x, rois, (2, 3), 1 / 8),
                   ops.roi_align(x, rois, (2, 3), 1 / 8, 2, 'avg', True)):
        assert output.shape == (0, 3, 2, 3)
        [grad] = torch.autograd.grad(output, x, torch.zeros_like(output))
        assert not grad.any()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    x, offset, weight = (tensor.to(dtype) for tensor in (normal(0, 2, 4, 9, 9), normal(1, 2, 18, 9, 9),
                                                         normal(2, 4, 4, 3, 3)))
    rois = torch.tensor([[0, 1, 1, 7, 8], [1, 0, 2, 3, 5]])
    for function, inputs in ((lambda x: ops.roi_align(x, rois.to(x), 3, 1., 0, 'avg', True), (x,)),
                             (lambda x, o, w: ops.deform_conv2d(x, o, w, 1, 1), (x, offset, weight))):
        assert torch.equal(function(*inputs), function(*(tensor.float() for tensor in inputs)).to(dtype))


def test_a_function_without_a_replacement_raises_when_it_is_called() -> None:
    with pytest.raises(NotImplementedError, match=r'^min_area_polygons has no replacement in openmmlab_compat, and '
                                                  r'mmcv has no compiled operators here: compile mmcv to use it\.$'):
        ops.min_area_polygons(torch.zeros(1, 18))
    with pytest.raises(NotImplementedError, match="pool_mode='max' needs the compiled operators of mmcv"):
        ops.RoIAlign(3, 1., 0, 'max')(torch.zeros(1, 1, 4, 4), torch.zeros(1, 5))
