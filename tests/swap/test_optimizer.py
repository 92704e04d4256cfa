import pytest
from mmengine.config import Config, ConfigDict
from mmengine.optim import build_optim_wrapper
from torch import nn

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.swap.optimizer import DECAY_RULES, adapt_optimizer, set_optimizer, translate_custom_keys
from tests.backbones import NARROW, NARROW_PLAIN

NORM, TABLE, HEAD = dict(lr_mult=0.1, decay_mult=0.), dict(lr_mult=0.2), dict(lr_mult=3.)


def with_head(backbone: PyramidCPVT) -> nn.Module:
    """A backbone and a head with a norm of its own."""
    return nn.ModuleDict(dict(backbone=backbone, head=nn.ModuleDict(dict(
        norm=nn.LayerNorm(4), query_embed=nn.Embedding(2, 4)))))


def rates(model: nn.Module, keys: dict) -> dict[str, tuple[float, float]]:
    """Learning rate and weight decay that mmengine gives to each parameter."""
    config = ConfigDict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1., weight_decay=1.),
                        paramwise_cfg=dict(custom_keys=keys))
    groups = build_optim_wrapper(model, config).optimizer.param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(group['params'][0])]: (group['lr'], group['weight_decay']) for group in groups}


def schedule(backbone: PyramidCPVT, scope: str = 'mmdet', **parts: object) -> Config:
    cfg = Config(dict(default_scope=scope, **parts))
    set_optimizer(cfg, backbone)
    return cfg


def test_keys_of_swin_become_keys_of_the_pyramid(backbone: PyramidCPVT) -> None:
    old = {
        'backbone': dict(lr_mult=0.1), 'backbone.patch_embed.norm': NORM, 'backbone.norm': NORM,
        'backbone.stages.0.blocks.1.norm': NORM, 'backbone.stages.2.downsample.norm': NORM,
        'absolute_pos_embed': TABLE, 'relative_position_bias_table': TABLE, 'backbone.stages.7': HEAD,
        'query_embed': HEAD}
    keys = translate_custom_keys(old, backbone)
    actual = rates(with_head(backbone), keys)
    norms = {f'backbone.{name}' for name, module in backbone.named_modules() if isinstance(module, nn.LayerNorm)}
    assert len(norms) == 4 + 2 * 9 + 7  # of patch embeddings, of blocks, of spatial reductions
    for name, (lr, decay) in actual.items():
        owner = name.rpartition('.')[0]
        expected = ((0.1, 0.) if owner in norms else (0.2, 1.) if 'position_encoding' in name else (0.1, 1.)
                    if name.startswith('backbone') else (3., 1.) if 'query_embed' in name else (1., 1.))
        assert (lr, decay) == pytest.approx(expected), name
    # They are few (of the backbone, of norms of embeddings and reductions, of those of nine blocks, of position
    # encodings and of the head), and none matches nothing.
    assert len(keys) == 1 + 2 + 9 + 1 + 1
    assert all(any(key in name for name in actual) for key in keys)
    keys = dict(cls_token=NORM, query_embed=HEAD)  # a head's query_embed is none of the backbone's
    assert translate_custom_keys(keys, CPVT(NARROW_PLAIN)) == keys
    assert translate_custom_keys(keys, CPVT(NARROW_PLAIN, cls_token=False)) == dict(query_embed=HEAD)


@pytest.mark.parametrize('name', ['decay_rate', 'layer_decay_rate'])
@pytest.mark.parametrize(('cls', 'arch', 'becomes', 'rate'), [
    (CPVT, NARROW_PLAIN, dict(constructor='cpvt_mm.LayerDecayOptimWrapperConstructor'), dict(layer_decay_rate=0.7)),
    (PyramidCPVT, NARROW, {}, {}),  # the rate was for another number of layers
])
def test_layer_decay_goes_on_in_a_plain_backbone(name: str, cls: type, arch: dict, becomes: dict, rate: dict) -> None:
    rest = dict(type='AmpOptimWrapper', optimizer=dict(type='AdamW', lr=1e-4))
    wrapper = ConfigDict(rest, constructor='mmseg.LayerDecayOptimizerConstructor',
                         paramwise_cfg={name: 0.7, 'decay_type': 'layer_wise', 'num_layers': 12})
    adapt_optimizer(wrapper, cls(arch))
    assert wrapper == dict(rest, **becomes, paramwise_cfg=dict(custom_keys=DECAY_RULES, **rate))


@pytest.mark.parametrize(('scope', 'lr'), [('mmdet', 2e-4), ('mmseg', 6e-5)])
def test_schedule_puts_adamw_and_the_rules_in(scope: str, lr: float, backbone: PyramidCPVT) -> None:
    cfg = schedule(
        backbone, scope, param_scheduler=[dict(type='PolyLR', eta_min=2e-4), dict(type='LinearLR')],
        auto_scale_lr=dict(enable=False, base_batch_size=64), optim_wrapper=dict(
            type='OptimWrapper', optimizer=dict(type='SGD', lr=0.02, momentum=0.9), clip_grad=dict(max_norm=35),
            paramwise_cfg=dict(bias_lr_mult=2., custom_keys=dict(head=HEAD))))
    # In proportion to the new rate: else they would raise a rate that begins below their end.
    assert cfg.param_scheduler[0].eta_min == pytest.approx(lr / 100) and cfg.param_scheduler[1] == dict(type='LinearLR')
    assert cfg.auto_scale_lr == dict(enable=False, base_batch_size=16)
    wrapper = cfg.optim_wrapper
    assert (wrapper.optimizer.type, wrapper.optimizer.lr) == ('AdamW', lr) and 'momentum' not in wrapper.optimizer
    assert wrapper.clip_grad == dict(max_norm=35)
    assert wrapper.paramwise_cfg == dict(bias_lr_mult=2., custom_keys=dict(head=HEAD, **DECAY_RULES))
    wrapper = schedule(backbone).optim_wrapper  # of a config without an optimizer
    assert wrapper.optimizer.type == 'AdamW' and wrapper.paramwise_cfg.custom_keys == DECAY_RULES


def test_schedule_keeps_an_adamw_and_the_rate_that_it_has_for_its_backbone(backbone: PyramidCPVT) -> None:
    given = dict(custom_keys=dict(backbone=dict(lr_mult=0.1), query_embed=HEAD))
    cfg = schedule(backbone, optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1.), paramwise_cfg=given),
                   param_scheduler=dict(type='PolyLR', eta_min=1e-4), auto_scale_lr=dict(base_batch_size=64))
    assert cfg.optim_wrapper.optimizer == dict(type='AdamW', lr=1.)
    assert cfg.param_scheduler.eta_min == 1e-4 and cfg.auto_scale_lr.base_batch_size == 64
    for name, (lr, decay) in rates(with_head(backbone), cfg.optim_wrapper.paramwise_cfg.custom_keys).items():
        assert lr == pytest.approx(0.1 if name.startswith('backbone') else 3. if 'query_embed' in name else 1.), name
        assert decay == (0. if 'position_encoding' in name or 'norm' in name else 1.), name
