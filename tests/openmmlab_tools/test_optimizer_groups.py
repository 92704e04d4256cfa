"""Merged groups of an optimizer: weights are the same as with mmengine's groups."""
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import (
    OptimWrapper,
    build_optim_wrapper,
)
from mmengine.registry import OPTIMIZERS
from torch import nn
from torch.optim import SGD

from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.engine import load_config, train
from tests.helpers import build_model, groups_by_name
from tests.openmmlab_tools.resuming import segmentor
from tests.openmmlab_tools.toy import DETECTOR, SEGMENTOR

MERGED, MMENGINES = 'openmmlab_tools.MergedOptimWrapperConstructor', 'DefaultOptimWrapperConstructor'
# Updates after the 2nd, 4th and 6th iteration, with gradients that are clipped.
RUN = {'train_cfg.max_iters': 6, 'model.backbone.frozen_stages': 2,
       'optim_wrapper.paramwise_cfg.custom_keys.decode_head.lr_mult': 3.,
        'optim_wrapper.accumulative_counts': 2,
       'custom_hooks': [dict(type='EMAHook')], 'param_scheduler': [dict(
           type='CosineAnnealingLR', by_epoch=False, begin=0, end=6, eta_min_ratio=0.01)]}


@OPTIMIZERS.register_module()
class NotOfTorch(SGD):
    """May treat each group by itself."""


def built(model: nn.Module, constructor: str, **optimizer: Any) -> OptimWrapper:
    return build_optim_wrapper(model, dict(
        constructor=constructor, optimizer=dict(lr=0.1, weight_decay=0.5, **optimizer),
        paramwise_cfg=dict(bias_decay_mult=0.)))


@pytest.mark.parametrize('config, custom_keys', [
    (DETECTOR, {'roi_head': dict(lr_mult=2.)}),
    (SEGMENTOR, {'backbone': dict(lr_mult=0.1, decay_mult=0.5), 'decode_head': dict(lr_mult=10.)})])
def test_equal_options_are_one_group_and_each_parameter_keeps_its_own(config: Path, custom_keys: dict) -> None:
    cfg = load_config(config, {'optim_wrapper.paramwise_cfg.custom_keys': custom_keys})
    assert_few_equal_groups(cfg)


def assert_few_equal_groups(cfg: Config) -> None:
    """Checks that each parameter has the settings of mmengine's groups, and that no two merged groups are equal."""
    model = build_model(cfg)
    merged, plain = (build_optim_wrapper(model, {**cfg.optim_wrapper, 'constructor': constructor})
                     for constructor in (MERGED, MMENGINES))
    groups, place = merged.optimizer.param_groups, {one: index for index, one in enumerate(model.parameters())}
    assert groups_by_name(model, merged) == groups_by_name(model, plain)
    options = [{key: value for key, value in group.items() if key != 'params'} for group in groups]
    assert 1 < len(groups) < 6 and all(option not in options[:number] for number, option in enumerate(options))
    places = [[place[param] for param in group['params']] for group in groups]
    assert places == sorted(map(sorted, places))
    logged, expected = ({key: rates[0] for key, rates in one.get_lr().items()} for one in (merged, plain))
    assert logged == expected and logged['base_lr'] == cfg.optim_wrapper.optimizer.lr


@pytest.mark.slow
def test_weights_are_the_same_to_the_bit_as_with_the_groups_of_mmengine(toy_shapes: Path, tmp_path: Path) -> None:
    def trained(constructor: str) -> dict[str, Any]:
        train(segmentor(toy_shapes, tmp_path / constructor, {**RUN, 'optim_wrapper.constructor': constructor}))
        return read_checkpoint(tmp_path / constructor / 'iter_6.pth')

    merged, unmerged = trained(MMENGINES), trained('openmmlab_tools.UnmergedOptimWrapperConstructor')
    assert len(merged['optimizer']['param_groups']) * 4 < len(unmerged['optimizer']['param_groups'])
    for part in ('state_dict', 'ema_state_dict'):
        torch.testing.assert_close(merged[part], unmerged[part], rtol=0, atol=0)


@pytest.mark.parametrize('options', [dict(type='AdamW'), dict(type='Adam'), dict(type='SGD', momentum=0.9)],
                         ids=lambda options: options['type'])
def test_fused_steps_differ_by_rounding_only(options: dict[str, Any]) -> None:
    models = [nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20))]
    models.append(copy.deepcopy(models[0]))
    wrappers = [built(model, MERGED, fused=model is models[0], **options) for model in models]
    assert [group['fused'] for group in wrappers[0].optimizer.param_groups] == [True] * 2
    for _ in range(5):
        for pair in zip(*(model.parameters() for model in models), strict=True):
            pair[0].grad = 1 + torch.rand_like(pair[0])
            pair[1].grad = pair[0].grad.clone()
        for wrapper in wrappers:
            wrapper.optimizer.step()
    # Gradients of one sign, from 1 to 2, do not cancel: after n = 5 steps, moments are right to 3n roundings, an update
    # of at most lr * 2n to 4n + 8, and each step rounds weights below 4 three times: less than 2**9 roundings in all.
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2**9 * 2.**-24)


def test_groups_of_other_optimizers_stay_and_the_norm_of_clipped_gradients_is_told() -> None:
    assert len(built(nn.Linear(2, 2), MERGED, type='NotOfTorch').optimizer.param_groups) == 2
    wrapper = build_optim_wrapper(model := nn.Linear(2, 2), dict(
        constructor=MERGED, optimizer=dict(type='SGD', lr=0.1), clip_grad=dict(max_norm=1.)))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert wrapper.clip_func([*model.parameters()], max_norm=1.) == pytest.approx(6**0.5)
    assert model.bias.grad.norm() < 1


@pytest.mark.parametrize('kind, where', [
    ('NAdam', 'cpu'), ('AdamW', 'meta'), ('SGD', 'meta'), ('AdamW', torch.complex64)])
def test_without_fused_kernels_a_note_tells_and_the_plain_ones_are_used(kind: str, where: Any, log: list) -> None:
    groups = built(nn.Linear(2, 2).to(where), MERGED, type=kind, fused=True).optimizer.param_groups
    assert len(groups) == 2 and not groups[0].get('fused')
    assert next(text for _, text in log if 'fused=True' in text).startswith(
        'note: the optimizer is built without fused=True, because torch does not support it here (')
