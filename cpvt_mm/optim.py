"""Layer-wise learning-rate decay."""
from typing import Any

from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from torch import nn

from cpvt_mm.models.backbone import Backbone
from cpvt_mm.registry import OPTIM_WRAPPER_CONSTRUCTORS
from cpvt_mm.tokens.validation import check_names
from openmmlab_tools.errors import UserError
from openmmlab_tools.optimizer_groups import MergedOptimWrapperConstructor

# The keys that mmengine's constructor reads; it silently ignores others.
MMENGINE_KEYS = ('custom_keys', 'bias_lr_mult', 'bias_decay_mult', 'norm_decay_mult', 'flat_decay_mult',
                 'dwconv_decay_mult', 'dcn_offset_lr_mult', 'bypass_duplicate')


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(MergedOptimWrapperConstructor):
    """Sets a lower learning rate for each layer of a backbone than for the next layer.

    With n layers after its own layer, a parameter has the learning rate `lr * layer_decay_rate**n` (BEiT, arXiv
    2106.08254; ViTDet, arXiv 2203.16527). The backbone's `get_layer_depth` numbers the layers. Parameters outside the
    backbone have the full learning rate. You can also use mmengine's rules: an `lr_mult`, for example in `custom_keys`,
    multiplies the decayed rate. In schedulers, use `eta_min_ratio`, because with `eta_min` all rates end at the same
    value.

    Args:
        optim_wrapper_cfg: Config of the wrapper. Its `optimizer` must contain `lr`.
        paramwise_cfg: `layer_decay_rate`, a number above 0 and at most 1, and the keys of mmengine's constructor.

    Raises:
        UserError: If `layer_decay_rate` or `lr` is missing or wrong, if another key is unknown, or if the model
            contains neither `CPVT` nor `PyramidCPVT`.

    Examples:
        >>> optim_wrapper = dict(
        ...     constructor='cpvt_mm.LayerDecayOptimWrapperConstructor',
        ...     optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.1),
        ...     paramwise_cfg=dict(layer_decay_rate=0.7, norm_decay_mult=0.))
    """

    def __init__(self, optim_wrapper_cfg: dict[str, Any], paramwise_cfg: dict[str, Any] | None = None) -> None:
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        check_names('a key of paramwise_cfg of LayerDecayOptimWrapperConstructor', self.paramwise_cfg,
                    ('layer_decay_rate', *MMENGINE_KEYS), UserError)
        rate = self.paramwise_cfg.get('layer_decay_rate')
        if not isinstance(rate, (int, float)) or not 0 < rate <= 1:
            raise UserError(f'optim_wrapper.paramwise_cfg.layer_decay_rate is {rate!r}, but must be a number above 0 '
                            'and at most 1. It multiplies the learning rate from one layer to the layer before it. Set '
                            'a number such as 0.7.')
        if self.base_lr is None:
            raise UserError('optim_wrapper.optimizer has no lr, but layer decay needs one. Set optim_wrapper.optimizer.'
                            'lr.')

    def __call__(self, model: nn.Module) -> OptimWrapper:
        if not any(isinstance(module, Backbone) for module in model.modules()):
            raise UserError(f'{type(model).__name__} contains neither CPVT nor PyramidCPVT, but '
                            'LayerDecayOptimWrapperConstructor requires such a backbone. Change the backbone, or use '
                            "the optimizer constructor of the backbone's library.")
        return super().__call__(model)

    def add_params(self, params: list[dict[str, Any]], module: nn.Module, prefix: str = '',
                   is_dcn_module: int | float | None = None) -> None:
        """Adds a group for each parameter of `module` to `params`. mmengine's method calls it again for children."""
        first = len(params)
        super().add_params(params, module, prefix, is_dcn_module)
        if not isinstance(module, Backbone):
            return
        names = {parameter: name for name, parameter in module.named_parameters()}
        for group in params[first:]:
            name = names[group['params'][0]]
            layer, num_layers = module.get_layer_depth(name)
            scale = self.paramwise_cfg['layer_decay_rate']**(num_layers - 1 - layer)
            group['lr'] = group.get('lr', self.base_lr) * scale
            # mmengine has logged the rates of custom_keys without the decay, so this line has the same format.
            full_name = f'{prefix}.{name}' if prefix else name
            print_log(f'paramwise_options -- {full_name}:lr={group["lr"]}', 'current')
