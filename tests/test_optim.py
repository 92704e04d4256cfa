"""The learning rates of layers, beside mmengine's of the same config without decay."""
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper, build_optim_wrapper
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, DefaultScope
from torch import nn

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.optim import LayerDecayOptimWrapperConstructor
from openmmlab_tools.engine import load_config
from tests.backbones import NARROW, NARROW_PLAIN
from tests.helpers import ROOT, build_model, groups_by_name, refusal
from tests.openmmlab_tools.test_optimizer_groups import assert_few_equal_groups

RATE = 0.75
LR = 1e-3
RULES = {
    'nothing else': {},
    'custom keys': dict(custom_keys={
        'backbone': dict(lr_mult=0.5), 'norm': dict(decay_mult=0.), 'blocks.1.norm1': dict(lr_mult=4.),
        'position_encoding': dict(lr_mult=2., decay_mult=0.), 'head': dict(lr_mult=10.)}),
    'kinds of layers': dict(norm_decay_mult=0., bias_decay_mult=0.5, flat_decay_mult=0.25, dwconv_decay_mult=0.1,
                            bias_lr_mult=2.)}


def wrapper(model: nn.Module, constructor: str = 'cpvt_mm.LayerDecayOptimWrapperConstructor',
            optimizer: dict[str, Any] = dict(type='AdamW', lr=LR, weight_decay=0.05), **paramwise: Any) -> OptimWrapper:
    return build_optim_wrapper(model, dict(constructor=constructor, optimizer=optimizer, paramwise_cfg=paramwise))


@pytest.mark.parametrize('rules', RULES.values(), ids=RULES)
@pytest.mark.parametrize('name', ['mask-rcnn_cpvt_sfp', 'upernet_pyramid-cpvt-nano'])
def test_a_layer_learns_at_its_share_and_all_else_is_mmengines(name: str, rules: dict[str, Any]) -> None:
    model = build_model(load_config(ROOT / f'configs/toy/{name}_toy-shapes.py'))
    actual = groups_by_name(model, wrapper(model, layer_decay_rate=RATE, **rules))
    # A number for a key that no rule reads: mmengine only looks at rules if there is any key at all.
    expected = groups_by_name(model, wrapper(model, 'DefaultOptimWrapperConstructor', no_rule=0, **rules))
    assert {*actual} == {*expected} == {name for name, _ in model.named_parameters()}
    for name in actual:
        layer, num_layers = model.backbone.get_layer_depth(name, 'backbone.')
        lr = expected[name].pop('lr') * RATE**(num_layers - 1 - layer)
        assert actual[name].pop('lr') == pytest.approx(lr, rel=1e-12), name
        assert actual[name] == expected[name]


@pytest.mark.parametrize('backbone', [PyramidCPVT(NARROW, out_norm=True), CPVT(NARROW_PLAIN, frozen_stages=2)],
                         ids=['pyramid', 'plain'])
@pytest.mark.parametrize('wrap', [
    nn.DataParallel, torch.compile, lambda backbone: nn.ModuleDict(dict(a=nn.Sequential(backbone), b=nn.Linear(2, 2))),
    lambda shared: nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))])
def test_the_backbone_is_found_wherever_it_is(wrap: Callable[..., nn.Module], backbone: nn.Module) -> None:
    actual, model = groups_by_name(backbone, wrapper(backbone, layer_decay_rate=RATE)), wrap(backbone)
    assert list(actual) == [name for name, parameter in backbone.named_parameters() if parameter.requires_grad]
    rates = [LR * RATE**i for i in reversed(range(backbone.num_blocks + 2))]
    # Of the frozen ones the entry and two blocks.
    assert sorted({setting['lr'] for setting in actual.values()}) == pytest.approx(
        rates[3:] if backbone.frozen_stages > 0 else rates)
    inside = groups_by_name(model, wrapper(model, layer_decay_rate=RATE, bypass_duplicate=True))
    names = {parameter: name for name, parameter in backbone.named_parameters()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert inside[name] == (actual[names[parameter]] if parameter in names else dict(inside[name], lr=LR))


def test_the_log_tells_the_rates(log: list) -> None:
    wrapper(PyramidCPVT(NARROW), layer_decay_rate=0.5, custom_keys={'patch_embed': dict(lr_mult=2.)})
    lines = [message for _, message in log if 'stages.0.patch_embed.proj.weight:lr=' in message]
    assert lines[-1] == f'paramwise_options -- stages.0.patch_embed.proj.weight:lr={2 * LR / 2**10}'


@pytest.mark.parametrize('name', ['toy/mask-rcnn_cpvt_sfp_toy-shapes',
                                  'nuclei/mask-rcnn_pvtv2-b0-pretrained_fpn_nuclei',
                                  'pvtv2/segformer_pvtv2-b0_8xb2-160k_ade20k-512x512'])
def test_parameters_with_equal_options_are_one_group(name: str) -> None:
    assert_few_equal_groups(load_config(ROOT / f'configs/{name}.py'))


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class UnmergedLayerDecay(LayerDecayOptimWrapperConstructor):
    """Builds mmengine's groups, with layer decay."""

    __call__ = DefaultOptimWrapperConstructor.__call__


def test_weights_are_the_same_to_the_bit_as_with_a_group_for_each_parameter() -> None:
    models = [PyramidCPVT(NARROW)]
    models.append(copy.deepcopy(models[0]))
    rules = dict(layer_decay_rate=0.7, norm_decay_mult=0.)
    merged, plain = wrapper(models[0], **rules), wrapper(models[1], 'UnmergedLayerDecay', **rules)
    assert len(merged.optimizer.param_groups) * 4 < len(plain.optimizer.param_groups)
    for _ in range(3):
        for one, other in zip(*(model.parameters() for model in models), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        merged.optimizer.step()
        plain.optimizer.step()
    torch.testing.assert_close(*(model.state_dict() for model in models), rtol=0, atol=0)


@pytest.mark.parametrize('name', ['cpvt-ti', 'pyramid-cpvt-s'])
def test_mmpretrains_constructor_takes_the_same_layers(name: str) -> None:
    family = 'pyramid_cpvt' if 'pyramid' in name else 'cpvt'
    model = build_model(load_config(ROOT / f'configs/{family}/{name}_16xb64_in1k.py'))
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        theirs, ours = (groups_by_name(model, wrapper(model, constructor, layer_decay_rate=RATE)) for constructor in (
            'mmpretrain.LearningRateDecayOptimWrapperConstructor', 'cpvt_mm.LayerDecayOptimWrapperConstructor'))
    assert {name: group['lr'] for name, group in ours.items()} == pytest.approx(
        {name: group['lr'] for name, group in theirs.items()})


@pytest.mark.parametrize('build, optimizer, paramwise, words', [
    *((CPVT, dict(lr=LR), dict(layer_decay_rate=rate), f'layer_decay_rate is {rate!r}, but must be a number above 0')
      for rate in (None, 0, '0.7')),
    (CPVT, dict(lr=LR), dict(layer_decay_rate=0.7, num_layers=12), "'num_layers' is not a key of paramwise_cfg"),
    (CPVT, {}, dict(layer_decay_rate=0.7), 'optimizer has no lr'),
    (nn.Linear, dict(lr=LR), dict(layer_decay_rate=0.7), 'Linear contains neither CPVT nor')])
def test_what_is_wrong_is_named(build: type, optimizer: dict[str, Any], paramwise: dict[str, Any], words: str) -> None:
    model = CPVT(NARROW_PLAIN) if build is CPVT else build(2, 2)
    assert words in refusal(wrapper, model, optimizer=dict(type='AdamW', **optimizer), **paramwise)
