"""Lets modules of OpenMMLab import large packages when they use them, not when they are imported.

mmengine imports transformers for one optimizer. `mmdet.models` imports all models of mmdet, and some of them import
transformers, mmpretrain, scikit-learn and scipy, where these packages are installed. This takes longer than torch, a
model and a prediction together. In `late_imports`, the modules in `IMPORTERS` get stand-ins for the names that they
import from these packages. A stand-in is a class that imports what it stands for when it is called, when one of its
attributes is read, or in `isinstance`; so is a subclass of a stand-in. Other modules get the packages themselves, and
`sys.modules` contains no stand-ins.
"""
import builtins
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from threading import RLock
from types import ModuleType, new_class
from typing import Any

# Modules of OpenMMLab's last releases and of the forks (onedl), and the package that each imports late.
IMPORTERS = {
    'mmdet.datasets.transforms.generate_line': 'scipy',
    'mmdet.datasets.transforms.text_transformers': 'transformers',
    'mmdet.evaluation.metrics.crowdhuman_metric': 'scipy',
    'mmdet.evaluation.metrics.culane_metric': 'scipy',
    'mmdet.models.data_preprocessors.reid_data_preprocessor': 'mmpretrain',
    'mmdet.models.dense_heads.atss_vlfusion_head': 'transformers',
    'mmdet.models.dense_heads.clr_head.lane': 'scipy',
    'mmdet.models.dense_heads.paa_head': 'sklearn',
    'mmdet.models.language_models.bert': 'transformers',
    'mmdet.models.reid.base_reid': 'mmpretrain',
    'mmdet.models.reid.linear_reid_head': 'mmpretrain',
    'mmdet.models.task_modules.assigners.hungarian_assigner': 'scipy',
    'mmdet.models.task_modules.assigners.topk_hungarian_assigner': 'scipy',
    'mmdet.models.task_modules.tracking.aflink': 'scipy',
    'mmdet.models.task_modules.tracking.interpolation': 'sklearn',
    'mmdet.models.task_modules.tracking.kalman_filter': 'scipy',
    'mmdet.models.trackers.sort_tracker': 'scipy',
    'mmdet.models.utils.vlfuse_helper': 'transformers',
    'mmengine.optim.optimizer.builder': 'transformers',
    'mmseg.datasets.transforms.transforms': 'scipy',
    'mmseg.models.assigners.hungarian_assigner': 'scipy',
    'mmseg.models.backbones.beit': 'scipy',
    'mmseg.models.backbones.timm_backbone': 'timm',
    'mmseg.models.losses.huasdorff_distance_loss': 'scipy',
    'torchvision.ops.roi_align': 'torch._dynamo',
}
BODY = ('__module__', '__qualname__', '__doc__', '__classcell__')
LOCK = RLock()


class Late(type):
    """The type of stand-ins: a stand-in without bases is a class or function of a package, others are subclasses."""
    _bases: tuple[type, ...]
    _body: Mapping[str, Any]
    _real: Any

    def __new__(meta, name: str, bases: tuple[type, ...], body: Mapping[str, Any]) -> 'Late':
        return super().__new__(meta, name, (), {key: body[key] for key in BODY if key in body})

    def __init__(cls, name: str, bases: tuple[type, ...], body: Mapping[str, Any]) -> None:
        super().__init__(name, (), {})
        cls._bases, cls._body, cls._real = bases, body, None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return real(cls)(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith('__'):  # Python and inspect look these up in any class
            raise AttributeError(name)
        return getattr(real(cls), name)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, real(cls))

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(real(other), real(cls))

    @property
    def __signature__(cls) -> inspect.Signature:
        return inspect.signature(real(cls))


def real(kind: Any) -> Any:
    """Returns what a stand-in stands for; anything else as it is."""
    if not isinstance(kind, Late):
        return kind
    if kind._real is None and not kind._bases:
        kind._real = getattr(__import__(kind.__module__, fromlist=[kind.__name__]), kind.__name__)
    elif kind._real is None:
        bases = tuple(map(real, kind._bases))
        with LOCK:
            if kind._real is None:
                kind._real = new_class(kind.__name__, bases, exec_body=lambda body: body.update(kind._body))
                setattr(sys.modules[kind.__module__], kind.__name__, kind._real)  # so that pickle finds it
    return kind._real


class LateModule(ModuleType):
    """A module whose names are stand-ins."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):  # such as its version
            return getattr(import_module(self.__name__), name)
        stand_in = Late(name, (), dict(__module__=self.__name__))
        setattr(self, name, stand_in)
        return stand_in


class LateLoader(SourceFileLoader):
    """Executes a module in `IMPORTERS`."""

    def exec_module(self, module: ModuleType) -> None:
        python_imports, package = builtins.__import__, IMPORTERS[module.__name__]

        def import_late(name: str, globals: Mapping[str, object] | None = None,
                        locals: Mapping[str, object] | None = None, fromlist: Sequence[str] | None = (),
                        level: int = 0) -> ModuleType:
            if (globals is not None and globals.get('__name__') == module.__name__ and not level
                    and f'{name}.'.startswith(f'{package}.') and package not in sys.modules and find_spec(package)):
                return LateModule(name if fromlist else package)
            return python_imports(name, globals, locals, fromlist, level)

        builtins.__import__ = import_late
        try:
            super().exec_module(module)
        finally:
            builtins.__import__ = python_imports


class LateImports:
    """A finder of the modules in `IMPORTERS`."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in IMPORTERS else None
        if spec and type(spec.loader) is SourceFileLoader:
            spec.loader = LateLoader(spec.loader.name, spec.loader.path)
        return spec


@contextmanager
def late_imports() -> Iterator[None]:
    """Lets modules that are imported in the `with` block import packages when they use them."""
    sys.meta_path.insert(0, LateImports)
    try:
        yield
    finally:
        sys.meta_path.remove(LateImports)
