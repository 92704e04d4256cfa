"""Merged groups of an optimizer: weights are those of mmengine's groups, and either resumes the other's checkpoints."""
import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mmengine.optim import (
    DefaultOptimWrapperConstructor,
    OptimWrapper,
    ReduceOnPlateauLR,
    build_optim_wrapper,
)
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIMIZERS, PARAM_SCHEDULERS
from torch import Tensor, nn
from torch.optim import SGD

from cpvt_mm.optim import LayerDecayOptimWrapperConstructor
from openmmlab_runs.checkpoints.reading import read_checkpoint
from openmmlab_runs.engine import load_config, train
from openmmlab_runs.hooks.same_state import STATE, check_resumes, state_of
from openmmlab_runs.optimizer_groups import regroup
from tests.conftest import ROOT, build_model, groups_by_name
from tests.openmmlab_runs.hooks.test_same_state import toy

MERGED, MMENGINES = 'openmmlab_runs.MergedOptimWrapperConstructor', 'DefaultOptimWrapperConstructor'
# Updates after the 2nd, 4th and 6th iteration, a checkpoint after the 3rd, and gradients that are clipped.
RUN = {'train_cfg.max_iters': 6, 'default_hooks.checkpoint.interval': 3, 'optim_wrapper.accumulative_counts': 2,
       'custom_hooks': [dict(type='EMAHook')], 'param_scheduler': [dict(
           type='CosineAnnealingLR', by_epoch=False, begin=0, end=6, eta_min_ratio=0.01)]}


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class Unmerged(DefaultOptimWrapperConstructor):
    """Builds mmengine's groups, also in runs of this project."""


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class UnmergedLayerDecay(LayerDecayOptimWrapperConstructor):
    """Builds mmengine's groups, with layer decay."""

    __call__ = DefaultOptimWrapperConstructor.__call__


@OPTIMIZERS.register_module()
class NotOfTorch(SGD):
    """May treat each group by itself."""


def built(model: nn.Module, constructor: str, **optimizer: Any) -> OptimWrapper:
    return build_optim_wrapper(model, dict(
        constructor=constructor, optimizer=dict(lr=0.1, weight_decay=0.5, **optimizer),
        paramwise_cfg=dict(bias_decay_mult=0.)))


@pytest.mark.parametrize('name', ['toy/mask-rcnn_cpvt_sfp_toy-shapes',
                                  'nuclei/mask-rcnn_pvtv2-b0-pretrained_fpn_nuclei',
                                  'pvtv2/segformer_pvtv2-b0_8xb2-160k_ade20k-512x512'])
def test_equal_options_are_one_group_and_each_parameter_keeps_its_own(name: str) -> None:
    cfg = load_config(ROOT / f'configs/{name}.py')
    model = build_model(cfg)
    merged, plain = (build_optim_wrapper(model, {**cfg.optim_wrapper, 'constructor': constructor})
                     for constructor in (MERGED, MMENGINES))
    groups, place = merged.optimizer.param_groups, {one: index for index, one in enumerate(model.parameters())}
    assert groups_by_name(model, merged) == groups_by_name(model, plain)
    options = [{key: value for key, value in group.items() if key != 'params'} for group in groups]
    assert 1 < len(groups) < 6 and all(one not in options[:number] for number, one in enumerate(options))
    places = [[place[one] for one in group['params']] for group in groups]
    assert places == sorted(map(sorted, places))
    logged, expected = ({key: rates[0] for key, rates in one.get_lr().items()} for one in (merged, plain))
    assert logged == expected and logged['base_lr'] == cfg.optim_wrapper.optimizer.lr


@pytest.mark.slow
@pytest.mark.parametrize('options, merged, plain', [
    ({'model.backbone.frozen_stages': 2, 'optim_wrapper.paramwise_cfg.custom_keys.decode_head.lr_mult': 3.},
     MMENGINES, 'Unmerged'),
    ({'optim_wrapper.paramwise_cfg': dict(_delete_=True, layer_decay_rate=0.7, norm_decay_mult=0.)},
     'cpvt_mm.LayerDecayOptimWrapperConstructor', 'UnmergedLayerDecay')], ids=['rules', 'layer decay'])
def test_weights_are_the_same_to_the_bit_and_either_resumes_the_other(
        options: dict[str, Any], merged: str, plain: str, toy_shapes: Path, tmp_path: Path) -> None:
    def trained(constructor: str, folder: str, resume: str | None = None) -> dict[str, Any]:
        train(toy(toy_shapes, tmp_path / folder, {**RUN, **options, 'optim_wrapper.constructor': constructor}),
              resume=resume)
        return read_checkpoint(tmp_path / folder / 'iter_6.pth')

    def assert_same(parts: tuple[str, ...], *runs: dict[str, Any]) -> None:
        for part in parts:
            torch.testing.assert_close(*(run[part] for run in runs), rtol=0, atol=0)
        assert runs[0].get('param_schedulers') == runs[1].get('param_schedulers') or 'optimizer' not in parts
        assert len({str([run['message_hub']['log_scalars'][f'train/{rate}']['log_history'].tolist()
                         for rate in ('lr', 'base_lr')]) for run in runs}) == 1

    ours, theirs = trained(merged, 'ours'), trained(plain, 'theirs')
    assert len(ours['optimizer']['param_groups']) * 4 < len(theirs['optimizer']['param_groups'])
    assert_same(('state_dict', 'ema_state_dict'), ours, theirs)
    everything = ('state_dict', 'ema_state_dict', 'optimizer')
    assert_same(everything, ours, trained(merged, 'ours-resumed', str(tmp_path / 'theirs/iter_3.pth')))
    assert_same(everything, theirs, trained(plain, 'theirs-resumed', str(tmp_path / 'ours/iter_3.pth')))
    old = read_checkpoint(tmp_path / 'theirs/iter_3.pth')
    del old['meta'][STATE]  # as plain mmengine writes it
    torch.save(old, tmp_path / 'old.pth')
    assert_same(everything, ours, trained(merged, 'old-resumed', str(tmp_path / 'old.pth')))


class Steps:
    """Steps of a model, with what resuming needs of a runner."""

    def __init__(self, constructor: str, kind: dict[str, Any], schedule: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1))
        self.model[2].weight.requires_grad = False
        self.optim_wrapper = build_optim_wrapper(self.model, dict(
            constructor=constructor, optimizer=dict(lr=0.1, weight_decay=0.5, **kind), paramwise_cfg=dict(
                bias_lr_mult=2., norm_decay_mult=0., bypass_duplicate=True, custom_keys={'2': dict(lr_mult=3.)})))
        self.schedule = PARAM_SCHEDULERS.build(dict(schedule), default_args=dict(optimizer=self.optim_wrapper))
        self.param_schedulers = [self.schedule]
        self.train_loop, self.hooks = SimpleNamespace(max_iters=9), []

    def step(self, seed: int) -> None:
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        self.optim_wrapper.optimizer.step()
        self.schedule.step(*[dict(loss=1.)] * isinstance(self.schedule, ReduceOnPlateauLR))

    def saved(self, told: bool) -> dict[str, Any]:
        return copy.deepcopy(dict(
            meta=dict(iter=3, **{STATE: state_of(self)} if told else {}), optimizer=self.optim_wrapper.state_dict(),
            param_schedulers=[self.schedule.state_dict()], weights=self.model.state_dict()))

    def resume(self, checkpoint: dict[str, Any]) -> None:
        check_resumes(self, checkpoint, 0)
        self.model.load_state_dict(checkpoint['weights'])
        self.optim_wrapper.load_state_dict(checkpoint['optimizer'])
        self.schedule.load_state_dict(*checkpoint['param_schedulers'])


@pytest.mark.parametrize('schedule', [
    dict(type='CosineAnnealingLR', end=6, eta_min_ratio=0.1), dict(type='PolyLR', end=6, eta_min=0.01),
    dict(type='ReduceOnPlateauLR', monitor='loss', patience=0, min_value=0.02)], ids=lambda schedule: schedule['type'])
@pytest.mark.parametrize('kind', [dict(type='AdamW'), dict(type='SGD', momentum=0.9, nesterov=True)],
                         ids=lambda kind: kind['type'])
def test_steps_after_a_checkpoint_of_other_groups_are_those_of_one_run(
        kind: dict[str, Any], schedule: dict[str, Any]) -> None:
    whole = Steps(MMENGINES, kind, schedule)
    for seed in range(6):
        whole.step(seed)
    for first, then, told in ((MERGED, MMENGINES, True), (MMENGINES, MERGED, True), (MMENGINES, MERGED, False)):
        before, after = (Steps(constructor, kind, schedule) for constructor in (first, then))
        assert len({len(one.optim_wrapper.param_groups) for one in (before, after)}) == 2
        for seed in range(3):
            before.step(seed)
        after.resume(before.saved(told))
        rates = [group['lr'] for group in after.optim_wrapper.param_groups]
        assert after.schedule.get_last_value() == rates
        assert len(getattr(after.schedule, 'min_values', rates)) == len(rates)
        for seed in range(3, 6):
            after.step(seed)
        torch.testing.assert_close(after.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
        assert groups_by_name(after.model, after.optim_wrapper) == groups_by_name(whole.model, whole.optim_wrapper)
        assert after.optim_wrapper.get_lr()['base_lr'] == whole.optim_wrapper.get_lr()['base_lr']


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
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    assert wrapper.clip_func([*model.parameters()], max_norm=1.) == pytest.approx(6**0.5)
    assert model.bias.grad.norm() < 1


@pytest.mark.parametrize('kind, where', [
    ('NAdam', 'cpu'), ('AdamW', 'meta'), ('SGD', 'meta'), ('AdamW', torch.complex64)])
def test_without_fused_kernels_a_note_tells_and_the_plain_ones_are_used(kind: str, where: Any, log: list) -> None:
    groups = built(nn.Linear(2, 2).to(where), MERGED, type=kind, fused=True).optimizer.param_groups
    assert len(groups) == 2 and not groups[0].get('fused')
    assert next(text for _, text in log if 'fused=True' in text).startswith(
        'note: the optimizer is built without fused=True, which torch refuses (')


Groups = list[dict[str, Any]]


def grouped(parameters: list[Tensor], kinds: list[int], merged: bool) -> Groups:
    pairs = list(zip(parameters, kinds, strict=True))
    return [dict(params=[one for one, its in pairs if its == kind], lr=2.**-kind) for kind in dict.fromkeys(kinds)
            ] if merged else [dict(params=[one], lr=2.**-kind) for one, kind in pairs]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.booleans(), st.randoms(use_true_random=False))
def test_a_state_is_that_of_each_parameter_in_any_groups(kinds: list[int], merged: bool, random: Any) -> None:
    parameters = [nn.Parameter(torch.full((2,), float(index))) for index in range(len(kinds))]
    first = SGD(grouped(parameters, kinds, merged), momentum=0.5)
    for one in parameters:
        one.grad = one.detach().clone()
    first.step()
    state = copy.deepcopy(first.state_dict())
    places = {one: (number, index) for number, group in enumerate(first.param_groups)
              for index, one in enumerate(group['params'])}
    pairs = list(zip(parameters, kinds, strict=True))
    random.shuffle(pairs)
    second = SGD(grouped(*map(list, zip(*pairs, strict=True)), not merged), momentum=0.5)
    for group in second.param_groups:
        group['lr'] *= 3  # the state's is taken
    assert regroup(state, places, second) is not None
    second.load_state_dict(state)
    for group in second.param_groups:
        for one in group['params']:
            assert group['lr'] == first.param_groups[places[one][0]]['lr']
            assert second.state[one]['momentum_buffer'].equal(first.state[one]['momentum_buffer'])
    if len({*kinds}) > 1:  # in other groups of options
        other, before = SGD(parameters, lr=1., momentum=0.5), copy.deepcopy(state)
        assert regroup(before, {one: (number, index) for number, group in enumerate(second.param_groups)
                                for index, one in enumerate(group['params'])}, other) is None
        assert str(before) == str(state)


@pytest.mark.parametrize('kinds_then, kinds', [([0, 0], [0, 1]), ([0, 1], [0, 0]), ([0, 0, 0], [0, 0]),
                                               ([0, 1, 2], [0, 1])])
def test_a_state_of_other_options_or_of_more_parameters_is_left_as_it_is(
        kinds_then: list[int], kinds: list[int]) -> None:
    parameters = [nn.Parameter(torch.ones(2)) for _ in kinds_then]
    kept = parameters[:len(kinds)]
    first = SGD(grouped(parameters, kinds_then, True), momentum=0.5)
    places = {one: (number, index) for number, group in enumerate(first.param_groups)
              for index, one in enumerate(group['params'])}
    state = first.state_dict()
    before = copy.deepcopy(state)
    second = SGD(grouped(kept, kinds, False), momentum=0.5)
    assert regroup(state, {one: places[one] for one in kept}, second) is None
    assert state == before


@pytest.mark.parametrize('fused', [True, False])
def test_fused_is_that_of_the_config_which_a_scaler_of_mixed_precision_needs(fused: bool) -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    optimizers = [built(model, name, type='AdamW', fused=one).optimizer for name, one in (
        (MMENGINES, not fused), (MERGED, fused))]
    optimizers[0].step()
    state, weights = optimizers[0].state_dict(), model.weight.detach().clone()
    places = {one: (number, 0) for number, one in enumerate(model.parameters())}
    assert regroup(state, places, optimizers[1]) == [0, 1]
    optimizers[1].load_state_dict(state)
    scaler = torch.amp.GradScaler('cpu')
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    scaler.step(optimizers[1])
    assert optimizers[1].param_groups[0]['fused'] == fused and not model.weight.equal(weights)
