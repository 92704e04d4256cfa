"""The learning rates of layers, beside mmengine's of the same config without decay."""
from typing import Any

import pytest
import torch
from mmengine.optim import CosineAnnealingLR, OptimWrapper, build_optim_wrapper
from mmengine.registry import DefaultScope
from torch import Tensor, nn

from cpvt_mm import CPVT, PyramidCPVT
from openmmlab_runs.engine import load_config
from openmmlab_runs.errors import UserError
from tests.conftest import NARROW, NARROW_PLAIN, ROOT, build_model, groups_by_name

RATE = 0.75
LR = 1e-3
TOYS = {name: ROOT / f'configs/toy/{name}_toy-shapes.py' for name in (
    'mask-rcnn_pyramid-cpvt-nano_fpn', 'mask-rcnn_cpvt_sfp', 'upernet_pyramid-cpvt-nano', 'upernet_cpvt_sfp')}
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
@pytest.mark.parametrize('name', TOYS)
def test_a_layer_learns_at_its_share_and_all_else_is_mmengines(name: str, rules: dict[str, Any]) -> None:
    model = build_model(load_config(TOYS[name]))
    found = groups_by_name(model, wrapper(model, layer_decay_rate=RATE, **rules))
    # A number for a key that no rule reads: mmengine only looks at rules if there is any key at all.
    expected = groups_by_name(model, wrapper(model, 'DefaultOptimWrapperConstructor', no_rule=0, **rules))
    assert list(found) == list(expected) == [name for name, _ in model.named_parameters()]
    for name in found:
        layer, num_layers = model.backbone.get_layer_depth(name, 'backbone.')
        lr = expected[name].pop('lr') * RATE**(num_layers - 1 - layer)
        assert found[name].pop('lr') == pytest.approx(lr, rel=1e-12), name
        assert found[name] == expected[name]


def inside(backbone: nn.Module) -> nn.Module:
    """A model that has the backbone deep inside."""
    encoder = nn.ModuleDict(dict(backbone=backbone))
    return nn.ModuleDict(dict(model=nn.ModuleDict(dict(encoder=encoder, head=nn.Linear(2, 2)))))


@pytest.mark.parametrize('backbone', [PyramidCPVT(NARROW, out_norm=True), CPVT(NARROW_PLAIN)], ids=['pyramid', 'plain'])
@pytest.mark.parametrize('wrap', [lambda backbone: backbone, nn.DataParallel, inside, torch.compile])
def test_the_backbone_is_found_wherever_it_is(wrap: Any, backbone: nn.Module) -> None:
    found = groups_by_name(backbone, wrapper(backbone, layer_decay_rate=RATE))
    assert len(found) == len(list(backbone.parameters()))
    rates = sorted({setting['lr'] for setting in found.values()})
    assert rates == pytest.approx([LR * RATE**i for i in reversed(range(backbone.num_blocks + 2))])
    model = wrap(backbone)
    found_inside = groups_by_name(model, wrapper(model, layer_decay_rate=RATE))
    names = {parameter: name for name, parameter in backbone.named_parameters()}
    for name, parameter in model.named_parameters():
        expected = found[names[parameter]] if parameter in names else dict(found_inside[name], lr=LR)
        assert found_inside[name] == expected


def test_frozen_parameters_are_left_out_and_the_others_stay_as_they_are() -> None:
    free, frozen = CPVT(NARROW_PLAIN), CPVT(NARROW_PLAIN, frozen_stages=2)
    expected = groups_by_name(free, wrapper(free, layer_decay_rate=RATE))
    found = groups_by_name(frozen, wrapper(frozen, layer_decay_rate=RATE))
    assert list(found) == [name for name, parameter in frozen.named_parameters() if parameter.requires_grad]
    assert found == {name: expected[name] for name in found} and len(found) < len(expected)


def test_a_backbone_that_two_parts_share_is_scaled_once() -> None:
    backbone = PyramidCPVT(NARROW)
    model = nn.ModuleDict(dict(a=nn.Sequential(backbone), b=nn.Sequential(backbone)))
    found = groups_by_name(model, wrapper(model, layer_decay_rate=RATE, bypass_duplicate=True))
    assert list(found.values()) == list(groups_by_name(backbone, wrapper(backbone, layer_decay_rate=RATE)).values())


def test_a_rate_of_one_changes_nothing() -> None:
    model = CPVT(NARROW_PLAIN)
    assert {group['lr'] for group in groups_by_name(model, wrapper(model, layer_decay_rate=1)).values()} == {LR}


def test_schedulers_keep_the_ratios() -> None:
    model = PyramidCPVT(NARROW)
    wrapped = wrapper(model, layer_decay_rate=RATE, custom_keys={'norm': dict(lr_mult=2.)})

    def rates() -> Tensor:
        return torch.tensor([group['lr'] for group in wrapped.optimizer.param_groups], dtype=torch.float64)

    before, schedule = rates(), CosineAnnealingLR(wrapped, by_epoch=False, T_max=8, eta_min_ratio=0.01)
    for _ in range(5):
        wrapped.step()
        schedule.step()
        factor = wrapped.get_lr()['base_lr'][0] / LR  # what is logged
        assert factor < 1
        torch.testing.assert_close(rates(), before * factor, rtol=1e-9, atol=0)


def test_log_tells_the_rates(log: list) -> None:
    model = nn.Sequential(CPVT(NARROW_PLAIN))
    wrapper(model, layer_decay_rate=0.5, custom_keys={'patch_embed': dict(lr_mult=2.)})
    lines = [message for _, message in log if 'patch_embed.proj.weight:lr=' in message]
    assert lines[-1] == f'paramwise_options -- 0.patch_embed.proj.weight:lr={2 * LR / 2**5}'


@pytest.mark.parametrize('name', ['cpvt-ti-distilled', 'pyramid-cpvt-s'])
def test_mmpretrains_constructor_takes_the_same_layers(name: str) -> None:
    family = 'pyramid_cpvt' if 'pyramid' in name else 'cpvt'
    model = build_model(load_config(ROOT / f'configs/{family}/{name}_16xb64_in1k.py'))
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        theirs, ours = (groups_by_name(model, wrapper(model, constructor, layer_decay_rate=RATE)) for constructor in (
            'mmpretrain.LearningRateDecayOptimWrapperConstructor', 'cpvt_mm.LayerDecayOptimWrapperConstructor'))
    assert {name: group['lr'] for name, group in ours.items()} == pytest.approx(
        {name: group['lr'] for name, group in theirs.items()})


@pytest.mark.parametrize('model, optimizer, paramwise, words', [
    (CPVT, {}, {}, r'layer_decay_rate is None, but must be a number above 0 and at most 1'),
    *((CPVT, {}, dict(layer_decay_rate=rate), f'layer_decay_rate is {rate!r}, but') for rate in (0, 1.1, '0.7')),
    (CPVT, {}, dict(layer_decay_rate=0.7, num_layers=12), "'num_layers' is not a key of paramwise_cfg .* allowed are "
     'layer_decay_rate, custom_keys'),
    (CPVT, dict(type='AdamW'), dict(layer_decay_rate=0.7), 'optimizer has no lr'),
    (nn.Identity, {}, dict(layer_decay_rate=0.7), 'Identity has no CPVT or PyramidCPVT')])
def test_what_is_wrong_is_named(model: type, optimizer: dict[str, Any], paramwise: dict[str, Any], words: str) -> None:
    built = CPVT(NARROW_PLAIN) if model is CPVT else model()
    with pytest.raises(UserError, match=words) as error:
        wrapper(built, optimizer=optimizer or dict(type='AdamW', lr=LR), **paramwise)
    assert str(error.value).endswith('.') and '\n' not in str(error.value)
