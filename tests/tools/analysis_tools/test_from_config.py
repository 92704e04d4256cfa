from mmengine.config import Config
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import DefaultScope
from mmseg.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from cpvt_lab.from_config import build_plain_optim_wrapper


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class Frozen(DefaultOptimWrapperConstructor):
    """A constructor that mmseg's scope alone knows."""

    def add_params(self, params: list[dict], module: nn.Module, **_: object) -> None:
        params.append(dict(params=list(module.parameters()), lr=0.))


def test_the_optimizer_is_built_in_the_scope_of_the_config() -> None:
    cfg = Config(dict(default_scope='mmseg', optim_wrapper=dict(
        type='AmpOptimWrapper', constructor='Frozen', optimizer=dict(type='SGD', lr=0.1), paramwise_cfg=dict(a=1))))
    with DefaultScope.overwrite_default_scope('mmdet'):
        wrapper = build_plain_optim_wrapper(nn.Linear(1, 1), cfg, momentum=0.5)
    assert [(group['lr'], group['momentum']) for group in wrapper.optimizer.param_groups] == [(0., 0.5)]
