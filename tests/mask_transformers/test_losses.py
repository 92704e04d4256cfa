"""Losses of mask queries: unlabelled pixels and padding get no gradient, and otherwise the losses are mmdet's."""
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmdet.models import Mask2FormerHead
from mmdet.models.task_modules import MaskPseudoSampler
from mmengine.config import Config
from mmengine.structures import InstanceData
from torch import Tensor

from cpvt_mm.mask_transformers.heads import PlainMaskHead, PlainMaskSegHead
from tests.helpers import ROOT

CLASSES, QUERIES, SIDE = 4, 6, 32
IGNORED = 255
MATCHING = dict(Config.fromfile(ROOT / 'configs/_base_/models/mask_matching.py').matching)


def head_of(num_points: int = 500, unsure: float = 0.75) -> Any:
    head = PlainMaskSegHead(8, CLASSES, train_cfg=dict(
        MATCHING, num_points=num_points, importance_sample_ratio=unsure))
    head.num_queries, head.sampler = QUERIES, MaskPseudoSampler()  # mmdet's losses take a sampler
    return head


def instances(label_map: Tensor) -> InstanceData:
    """Returns a mask for each class of a label map, `(H, W)`, as mmseg does."""
    labels = label_map[label_map != IGNORED].unique()
    return InstanceData(labels=labels, masks=(label_map == labels[:, None, None]).long())


def quarters() -> Tensor:
    half = SIDE // 2
    return torch.arange(CLASSES).view(2, 2).repeat_interleave(half, 0).repeat_interleave(half, 1)


def losses(head: Any, label_maps: list[Tensor], logits: Tensor, scores: Tensor | None = None,
           function: Callable[..., dict[str, Tensor]] = PlainMaskSegHead.loss_by_feat) -> dict[str, Tensor]:
    scores = torch.zeros(len(label_maps), QUERIES, CLASSES + 1) if scores is None else scores
    return function(head, [scores], [logits], [instances(one) for one in label_maps], [{} for _ in label_maps])


UNLABELLED = {
    'a half': lambda: (torch.arange(SIDE) >= SIDE // 2).expand(SIDE, SIDE),
    'half a cell more': lambda: (torch.arange(SIDE) >= SIDE // 2 + 2).expand(SIDE, SIDE),
    'a border': lambda: torch.ones(SIDE, SIDE).index_fill(
        0, torch.arange(3, 29), 0).bool() | torch.ones(SIDE, SIDE).index_fill(1, torch.arange(3, 29), 0).bool(),
    'noise': lambda: torch.rand(SIDE, SIDE) < 0.6,
    'all but one pixel': lambda: torch.arange(SIDE * SIDE).view(SIDE, SIDE) != 333,
    'all': lambda: torch.ones(SIDE, SIDE, dtype=torch.bool)}


@pytest.mark.parametrize('cell', [1, 4])
@pytest.mark.parametrize('unlabelled', UNLABELLED.values(), ids=UNLABELLED)
def test_an_unlabelled_pixel_gets_no_gradient(unlabelled: Callable[[], Tensor], cell: int) -> None:
    torch.manual_seed(0)
    is_unlabelled = unlabelled()
    label_maps = [quarters().masked_fill(is_unlabelled, IGNORED), quarters()]
    logits = torch.randn(2, QUERIES, SIDE // cell, SIDE // cell, requires_grad=True)
    actual = losses(head_of(), label_maps, logits)
    assert all(value.isfinite() for value in actual.values())
    gradient, = torch.autograd.grad(actual['loss_mask'] + actual['loss_dice'], logits)
    cells = is_unlabelled.view(SIDE // cell, cell, SIDE // cell, cell).all(3).all(1)
    assert cells.any() or cell > 1
    assert (gradient[0, :, cells] == 0).all()
    assert (gradient[0, :, ~cells] != 0).any() == (not cells.all())
    assert (gradient[1] != 0).any(0).float().mean() > 0.9


def test_padding_gets_no_gradient_and_background_does() -> None:
    head = PlainMaskHead(8, CLASSES, 0, dict(MATCHING, num_points=500))
    head.num_queries = QUERIES
    objects = instances(quarters().masked_fill(UNLABELLED['noise'](), IGNORED))  # most of the image is background
    logits = torch.randn(2, QUERIES, SIDE // 4, SIDE // 4, requires_grad=True)
    actual = head.loss_by_feat([torch.zeros(2, QUERIES, CLASSES + 1)], [logits], [objects, objects],
                               [dict(img_shape=(SIDE // 2 + 2, SIDE, 3)), dict(img_shape=(SIDE, SIDE))])
    gradient, = torch.autograd.grad(actual['loss_mask'] + actual['loss_dice'], logits)
    rows = SIDE // 8 + 1
    assert (gradient[0, :, rows:] == 0).all()
    assert (gradient[1] != 0).any(0).all() and (gradient[0, :, :rows] != 0).any(0).all()


def test_in_mmsegs_heads_an_unlabelled_pixel_is_background() -> None:
    label_map = quarters().masked_fill(UNLABELLED['a half'](), IGNORED)
    logits = torch.randn(1, QUERIES, SIDE, SIDE, requires_grad=True)
    actual = losses(head_of(), [label_map], logits, function=Mask2FormerHead.loss_by_feat)
    gradient, = torch.autograd.grad(actual['loss_mask'] + actual['loss_dice'], logits)
    assert (gradient[..., SIDE // 2 + 1:] != 0).any()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 40), st.integers(1, 4), st.floats(0, 1))
def test_for_any_label_map(seed: int, height: int, width: int, cell: int, share: float) -> None:
    torch.manual_seed(seed)
    label_map = torch.randint(CLASSES, (height, width)).masked_fill(torch.rand(height, width) < share, IGNORED)
    logits = torch.randn(1, QUERIES, -(-height // cell), -(-width // cell), requires_grad=True)
    actual = losses(head_of(50), [label_map], logits, torch.randn(1, QUERIES, CLASSES + 1))
    assert all(value.isfinite() and value >= 0 for value in actual.values())
    gradient, = torch.autograd.grad(actual['loss_mask'] + actual['loss_dice'], logits)
    labelled = torch.nn.functional.adaptive_max_pool2d((label_map != IGNORED)[None].float(), logits.shape[2:]) > 0
    assert gradient.isfinite().all() and (gradient.masked_fill(labelled, 0) == 0).all()


@pytest.mark.parametrize('unlabelled', UNLABELLED.values(), ids=UNLABELLED)
def test_a_target_is_not_mixed_with_unlabelled_pixels_beside_it(unlabelled: Callable[[], Tensor]) -> None:
    """All labelled pixels have one class. The logit of its mask is 80, and a quarter of that in the image's corners."""
    label_map = torch.zeros(SIDE, SIDE, dtype=torch.long).masked_fill(unlabelled(), IGNORED)
    actual = losses(head_of(), [label_map], torch.full((1, QUERIES, SIDE, SIDE), 80.))
    assert max(actual['loss_mask'], actual['loss_dice']) <= 5 * math.exp(-80 / 4) + 1e-5  # in float32


def test_what_is_predicted_at_unlabelled_pixels_changes_no_loss() -> None:
    label_map = quarters().masked_fill(UNLABELLED['a half'](), IGNORED)
    scores, logits = torch.randn(1, QUERIES, CLASSES + 1), torch.randn(1, QUERIES, SIDE, SIDE)
    changed = logits.clone()
    changed[..., SIDE // 2 + 1:] = 100 * torch.randn(SIDE // 2 - 1)  # the first column is beside labelled pixels
    actual = []
    for one in (logits, changed):
        torch.manual_seed(0)
        actual.append(losses(head_of(), [label_map], one, scores))
    assert actual[0] == actual[1]
    assert len({float(value) for value in actual[0].values()}) == 3


@pytest.mark.parametrize('unsure', [0., 0.75])
def test_if_all_pixels_are_labelled_the_losses_are_mmdets(unsure: float) -> None:
    """Points are random in both, so means are compared: they differ by at most five standard errors.

    Scores of classes decide the matching, so that it is not random.

    At the border of an image, mmdet mixes targets with zeros, so logits there are 0, for which the loss of a mask is
    log(2) with any target.
    """
    torch.manual_seed(0)
    scores, logits = 50 * torch.eye(QUERIES, CLASSES + 1).expand(2, -1, -1), 2 * torch.randn(2, QUERIES, SIDE, SIDE)
    for dim in (2, 3):
        logits.index_fill_(dim, torch.tensor([0, 1, SIDE - 2, SIDE - 1]), 0)
    draws, head, label_maps = 40, head_of(1000, unsure), [quarters(), quarters().flip(0)]
    ours, mmdets = (torch.stack([torch.stack([value.sum() for value in losses(
        head, label_maps, logits, scores, function).values()]) for _ in range(draws)])
        for function in (PlainMaskSegHead.loss_by_feat, Mask2FormerHead.loss_by_feat))
    error = ((ours.var(0) + mmdets.var(0)) / draws).sqrt()
    difference = (ours.mean(0) - mmdets.mean(0)).abs()
    assert difference[0] <= 1e-6 and difference[1] <= 5 * error[1]
    assert error[1] < 0.01 < ours.mean(0).min()
    # Dice counts targets themselves: those of the border are up to 4 / SIDE larger.
    assert difference[2] <= 5 * error[2] + 4 / SIDE * ours.mean(0)[2]
