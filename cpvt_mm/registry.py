"""Registries of the package.

mmengine imports `<scope>.registry` by itself, so `type='cpvt_mm.PyramidCPVT'` is found from any OpenMMLab config.
"""
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

from mmengine import registry
from mmengine.registry import DefaultScope, Registry

# Modules that need mmdet, mmseg or mmpretrain. They are imported only when a config names their class.
LAZY_MODULES = {
    'DetDataPreprocessor': 'cpvt_mm.data.det_preprocessors',
    'TrackDataPreprocessor': 'cpvt_mm.data.det_preprocessors',
    'SegDataPreProcessor': 'cpvt_mm.data.seg_preprocessor',
    'DistilledClassifier': 'cpvt_mm.models.distillation',
    'DistilledHead': 'cpvt_mm.models.distillation',
}


LOCK = RLock()  # mmengine has one default scope for all threads of a process


@contextmanager
def in_scope(library: str | None = None) -> Iterator[None]:
    """Lets one thread at a time run the `with` block, in which configs mean the classes of a library.

    It also decorates functions. Blocks may be nested. A generator must not be suspended in one.

    Args:
        library: mmengine's `default_scope`, such as 'mmdet'. Defaults to None: the scope stays.
    """
    with LOCK, DefaultScope.overwrite_default_scope(library):
        yield


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
