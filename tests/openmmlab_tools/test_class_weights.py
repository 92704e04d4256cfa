"""Class weights of mmseg's cross entropy, with pixels that are ignored, and by channel."""
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn import functional

from openmmlab_tools.checkpoints.loading import build_model
from openmmlab_tools.class_weights import mend_class_weights
from openmmlab_tools.engine import load_config, train
from openmmlab_tools.own_data.checking import try_sample
from openmmlab_tools.registry import in_scope
from tests.helpers import toy_overrides, with_forks
from tests.openmmlab_tools.toy import SEGMENTOR

WEIGHTS = [0.5, 1., 2.]


def loss_of(is_mended: bool = True, **settings: Any) -> nn.Module:
    with in_scope('mmseg'):
        loss = MODELS.build(dict(type='CrossEntropyLoss', class_weight=WEIGHTS, **settings))
    if is_mended:
        mend_class_weights(loss)
    return loss


@pytest.fixture
def scores_and_labels(float64: None) -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 4, 5), torch.randint(3, (2, 4, 5))


@pytest.mark.parametrize('avg_non_ignore', [False, True])
def test_ignored_pixels_have_no_weight(avg_non_ignore: bool, scores_and_labels: tuple[Tensor, Tensor]) -> None:
    """The expected loss is torch's, which averages by the weights of all other pixels."""
    scores, labels = scores_and_labels
    labels[:, 1:3] = 255
    loss = loss_of(avg_non_ignore=avg_non_ignore)
    expected = functional.cross_entropy(scores, labels, torch.tensor(WEIGHTS), ignore_index=255)
    eps = torch.finfo(torch.float32).eps  # which mmseg adds to the sum of the weights
    torch.testing.assert_close(loss(scores, labels, ignore_index=255), expected, rtol=eps, atol=0)
    labels[:] = 255
    assert loss(scores, labels, ignore_index=255) == 0
    points = scores.flatten(2)  # as those of PointRend
    assert loss(points, labels.flatten(1), ignore_index=255) == 0


@pytest.mark.parametrize('ignored', [255, 1])
@pytest.mark.parametrize('settings', [{}, dict(avg_non_ignore=True), dict(reduction='none'), dict(reduction='sum')])
def test_other_losses_are_those_of_mmseg(settings: dict, ignored: int, scores_and_labels: tuple[Tensor, Tensor]
                                         ) -> None:
    scores, labels = scores_and_labels
    if not ('avg_non_ignore' in settings and with_forks()):  # their own loss fails then
        given, of_mmseg = (loss_of(is_mended, **settings)(scores, labels, ignore_index=ignored)
                           for is_mended in (True, False))
        torch.testing.assert_close(given, of_mmseg)
    factor = loss_of(**{**settings, 'reduction': 'mean'})(scores, labels, avg_factor=7., ignore_index=ignored)
    torch.testing.assert_close(factor, loss_of(False, **{**settings, 'reduction': 'mean'})(
        scores, labels, avg_factor=7., ignore_index=ignored))


def test_with_a_sigmoid_a_weight_is_for_its_channel(scores_and_labels: tuple[Tensor, Tensor]) -> None:
    scores, labels = scores_and_labels
    labels[:, 1] = 255
    targets = torch.stack([labels == label for label in range(3)], dim=1).double()
    counts = (labels != 255).double()
    by_channel = [functional.binary_cross_entropy_with_logits(
        scores[:, label], targets[:, label], counts, pos_weight=torch.tensor(weight), reduction='sum')
        for label, weight in enumerate(WEIGHTS)]
    given = loss_of(use_sigmoid=True, avg_non_ignore=True)(scores, labels, ignore_index=255)
    # mmseg's targets are float32, and so are the terms, which are positive, and their sum.
    rtol = 2 * scores.numel() * torch.finfo(torch.float32).eps
    torch.testing.assert_close(given.double(), sum(by_channel) / (3 * counts.sum()), rtol=rtol, atol=0)
    pooled = torch.randn(2, 3)  # classes of whole images, as in EncNet
    torch.testing.assert_close(*(loss_of(is_mended, use_sigmoid=True)(pooled, (pooled > 0).double())
                                 for is_mended in (True, False)))


@pytest.fixture
def weighted(toy_shapes: Path, tmp_path: Path) -> Config:
    """Weighs classes of images that are padded with pixels of no class."""
    loss = dict(type='CrossEntropyLoss', class_weight=[0.1, 1., 1., 1., 1., 1.])
    return load_config(SEGMENTOR, toy_overrides(toy_shapes, **{
        'train_cfg.max_iters': 1, 'train_cfg.val_interval': 2, 'model.decode_head.loss_decode': loss}), str(tmp_path))


def test_a_run_and_a_check_of_it_go_through(weighted: Config) -> None:
    assert [*try_sample('train_dataloader', weighted.train_dataloader, 'mmseg', lambda: build_model(weighted))] == []
    train(weighted)
    assert MessageHub.get_current_instance().get_scalar('train/decode.loss_ce').current() > 0
    assert weighted.model.decode_head.loss_decode.type == 'CrossEntropyLoss'
