"""Registries of the package.

mmengine imports `<scope>.registry` by itself, so `type='cpvt_mm.PyramidCPVT'` is found from any OpenMMLab config.
"""
import importlib

from mmengine.registry import DATA_SAMPLERS as MMENGINE_DATA_SAMPLERS
from mmengine.registry import FUNCTIONS as MMENGINE_FUNCTIONS
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import LOOPS as MMENGINE_LOOPS
from mmengine.registry import METRICS as MMENGINE_METRICS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS as MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS
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


MODELS = ModelRegistry('model', parent=MMENGINE_MODELS, scope='cpvt_mm', locations=['cpvt_mm.models'])

HOOKS = Registry('hook', parent=MMENGINE_HOOKS, scope='cpvt_mm', locations=['cpvt_mm.hooks'])
LOOPS = Registry('loop', parent=MMENGINE_LOOPS, scope='cpvt_mm', locations=['cpvt_mm.engine.loops'])
DATA_SAMPLERS = Registry(
    'data sampler', parent=MMENGINE_DATA_SAMPLERS, scope='cpvt_mm', locations=['cpvt_mm.engine.seeding'])
FUNCTIONS = Registry('function', parent=MMENGINE_FUNCTIONS, scope='cpvt_mm', locations=['cpvt_mm.processes'])
METRICS = Registry('metric', parent=MMENGINE_METRICS, scope='cpvt_mm', locations=['cpvt_mm.evaluation'])
OPTIM_WRAPPER_CONSTRUCTORS = Registry(
    'optimizer wrapper constructor', parent=MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS, scope='cpvt_mm',
    locations=['cpvt_mm.optim'])

# A root registry without a parent, because other scopes never build position encodings.
POSITION_ENCODINGS = Registry(
    'position encoding', scope='cpvt_mm', locations=['cpvt_mm.models.position_encodings'])
