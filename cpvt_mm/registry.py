"""Registries of the backbones; mmengine finds them by `type='cpvt_mm.<name>'`, from any OpenMMLab config."""
import importlib
from collections.abc import Callable
from typing import Any

from mmengine import registry
from mmengine.registry import Registry

# Modules that need mmcv, mmdet and mmseg. They are imported only when a config names their class.
LAZY_MODULES = {
    'BatchInvariantHook': 'cpvt_mm.batch_invariance',
    'LayerDecayOptimWrapperConstructor': 'cpvt_mm.optim',
    'DetDataPreprocessor': 'cpvt_mm.preprocessors',
    'SegDataPreProcessor': 'cpvt_mm.seg_preprocessor',
    **dict.fromkeys(('PlainMaskTransformer', 'FrozenMaskTransformer'), 'cpvt_mm.mask_transformers.backbones'),
    **dict.fromkeys(('PlainMaskHead', 'PlainMaskSegHead'), 'cpvt_mm.mask_transformers.heads'),
    'MaskAnnealingHook': 'cpvt_mm.mask_transformers.masked_attention',
}


class LazyRegistry(Registry):
    """A registry that imports the modules of `LAZY_MODULES` only when one of their classes is requested."""

    def get(self, key: str) -> type | None:
        module = LAZY_MODULES.get(key.removeprefix(f'{self.scope}.'))
        if module:
            importlib.import_module(module)
        return super().get(key)


MODELS = LazyRegistry('model', parent=registry.MODELS, scope='cpvt_mm', locations=['cpvt_mm.models'])
FUNCTIONS = Registry('function', parent=registry.FUNCTIONS, scope='cpvt_mm', locations=['cpvt_mm.zoo.load'])
HOOKS = LazyRegistry('hook', parent=registry.HOOKS, scope='cpvt_mm')
OPTIM_WRAPPER_CONSTRUCTORS = LazyRegistry(
    'optimizer wrapper constructor', parent=registry.OPTIM_WRAPPER_CONSTRUCTORS, scope='cpvt_mm')

# A root registry without a parent, because other scopes never build position encodings.
POSITION_ENCODINGS = Registry('position encoding', scope='cpvt_mm', locations=['cpvt_mm.encodings'])

# Backbones and the neck, which configs may also name without a scope. Importing `cpvt_mm.models` takes long, because
# mmengine's base class comes with all optimizers.
UNSCOPED = ('CPVT', 'PyramidCPVT', 'SimpleFeaturePyramid')


def _built_late(name: str) -> Callable[..., object]:
    def build(**options: Any) -> object:
        return getattr(importlib.import_module('cpvt_mm.models'), name)(**options)

    return build


for _name in UNSCOPED:  # `cpvt_mm.models` registers the classes in their place
    registry.MODELS.register_module(_name, module=_built_late(_name), force=True)
