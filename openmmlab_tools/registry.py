"""Registries of what runs use; mmengine finds them by `type='openmmlab_tools.<name>'`, from any OpenMMLab config."""
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

from openmmlab_tools.compat import install

install()  # where no start-up file did, as in a clone that is not installed

from mmengine import registry  # noqa: E402
from mmengine.registry import DefaultScope, Registry  # noqa: E402

SCOPE = 'openmmlab_tools'
MODELS = Registry('model', parent=registry.MODELS, scope=SCOPE, locations=['openmmlab_tools.evaluation.metrics'])
HOOKS = Registry('hook', parent=registry.HOOKS, scope=SCOPE, locations=['openmmlab_tools.hooks'])
LOOPS = Registry('loop', parent=registry.LOOPS, scope=SCOPE, locations=['openmmlab_tools.engine.loops'])
DATA_SAMPLERS = Registry('data sampler', parent=registry.DATA_SAMPLERS, scope=SCOPE,
                         locations=['openmmlab_tools.engine.seeding'])
TRANSFORMS = Registry('transform', parent=registry.TRANSFORMS, scope=SCOPE,
                      locations=['openmmlab_tools.pictures.load_bands', 'openmmlab_tools.data.visible_objects'])
FUNCTIONS = Registry('function', parent=registry.FUNCTIONS, scope=SCOPE, locations=[
    'openmmlab_tools.signals', 'openmmlab_tools.hub_files'])
OPTIM_WRAPPER_CONSTRUCTORS = Registry(
    'optimizer wrapper constructor', parent=registry.OPTIM_WRAPPER_CONSTRUCTORS, scope=SCOPE,
    locations=['openmmlab_tools.optimizer_groups'])
METRICS = Registry('metric', parent=registry.METRICS, scope=SCOPE, locations=['openmmlab_tools.evaluation.metrics'])

LOCK = RLock()  # mmengine has one default scope for all threads of a process


@contextmanager
def in_scope(library: str | None = None) -> Iterator[None]:
    """Lets one thread at a time run the `with` block, in which configs mean the classes of a library, such as 'mmdet'.

    It also decorates functions. Blocks may be nested. A generator must not be suspended in one. `library` defaults to
    None: the scope stays.
    """
    with LOCK, DefaultScope.overwrite_default_scope(library):
        yield


def find(registry: Registry, kind: Any, scope: str | None) -> Any:
    """Returns the class that a `type` of a config means in a scope, or None; a class is returned as it is."""
    if not isinstance(kind, str):
        return kind
    with registry.switch_scope_and_registry(scope) as here:
        return here.get(kind)
