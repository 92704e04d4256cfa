"""Registries of the package.

mmengine imports `<scope>.registry` by itself, so `type='cpvt_mm.PyramidCPVT'` is found from any OpenMMLab config.
"""
import importlib

from mmengine import registry
from mmengine.registry import Registry

# Modules that need mmdet, mmseg or mmpretrain. They are imported only when a config names their class.
LAZY_MODULES = {
    'DetDataPreprocessor': 'cpvt_mm.data.det_preprocessors',
    'TrackDataPreprocessor': 'cpvt_mm.data.det_preprocessors',
    'SegDataPreProcessor': 'cpvt_mm.data.seg_preprocessor',
    'DistilledClassifier': 'cpvt_mm.models.distillation',
    'DistilledHead': 'cpvt_mm.models.distillation',
}


class ModelRegistry(Registry):
    """A registry that imports the modules of `LAZY_MODULES` only when one of their classes is requested."""

    def get(self, key: str) -> type | None:
        module = LAZY_MODULES.get(key.removeprefix(f'{self.scope}.'))
        if module:
            importlib.import_module(module)
        return super().get(key)


MODELS = ModelRegistry('model', parent=registry.MODELS, scope='cpvt_mm', locations=['cpvt_mm.models'])

HOOKS = Registry('hook', parent=registry.HOOKS, scope='cpvt_mm', locations=['cpvt_mm.hooks'])
LOOPS = Registry('loop', parent=registry.LOOPS, scope='cpvt_mm', locations=['cpvt_mm.engine.loops'])
DATA_SAMPLERS = Registry('data sampler', parent=registry.DATA_SAMPLERS, scope='cpvt_mm',
                         locations=['cpvt_mm.engine.seeding'])
FUNCTIONS = Registry('function', parent=registry.FUNCTIONS, scope='cpvt_mm', locations=['cpvt_mm.processes'])
METRICS = Registry('metric', parent=registry.METRICS, scope='cpvt_mm', locations=['cpvt_mm.evaluation'])
OPTIM_WRAPPER_CONSTRUCTORS = Registry(
    'optimizer wrapper constructor', parent=registry.OPTIM_WRAPPER_CONSTRUCTORS, scope='cpvt_mm',
    locations=['cpvt_mm.optim'])

# A root registry without a parent, because other scopes never build position encodings.
POSITION_ENCODINGS = Registry(
    'position encoding', scope='cpvt_mm', locations=['cpvt_mm.models.position_encodings'])
