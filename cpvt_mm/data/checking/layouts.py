"""Finds the datasets of configs, and the layout of their annotations."""
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from torch.utils.data import Dataset

Layout = Literal['coco', 'label maps', 'images']
# The class that reads a layout, and the methods that a subclass must not override to read the same layout.
READERS: dict[Layout, tuple[tuple[str, str], tuple[str, ...]]] = {
    'coco': (('mmdet', 'CocoDataset'), ('load_data_list', 'parse_data_info', 'COCOAPI')),
    'label maps': (('mmseg', 'BaseSegDataset'), ('load_data_list',)),
}


def unwrap(cfg: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the dataset of a config, or the datasets that it wraps (as in ConcatDataset and RepeatDataset).

    Each item is the dotted name of the dataset's config, and the config. `name` is the dotted name of `cfg`.
    """
    inner = [(f'{name}.{key}', one) for key, one in [
        *((f'datasets.{index}', one) for index, one in enumerate(_listed(cfg.get('datasets')))),
        ('dataset', cfg.get('dataset'))] if isinstance(one, dict) and 'type' in one]
    if not inner:
        yield name, cfg
    for inner_name, one in inner:
        yield from unwrap(one, inner_name)


def unwrap_built(dataset: Any) -> Iterator[Any]:
    """Yields a built dataset, or the datasets that it wraps."""
    wrapped = [*_listed(getattr(dataset, 'datasets', None)),
               *(getattr(dataset, name, None) for name in ('dataset', '_dataset'))]
    inner = [one for one in wrapped if isinstance(one, Dataset)]
    if not inner:
        yield dataset
    for one in inner:
        yield from unwrap_built(one)


def _listed(value: Any) -> Sequence[Any]:
    """Returns a list unchanged, and an empty sequence for any other value of an argument named `datasets`."""
    return value if isinstance(value, list | tuple) else ()


def dataset_class(cfg: dict[str, Any]) -> type:
    """Finds the class of a dataset's config, in the default scope.

    Raises:
        KeyError: If no class of this name is registered.
    """
    if isinstance(cfg['type'], type):
        return cfg['type']
    with DATASETS.switch_scope_and_registry(cfg.get('_scope_')) as registry:
        found = registry.get(cfg['type'])
    if found is None:
        raise KeyError(f'{cfg["type"]} is in no registry of datasets')
    return found


def layout_of(cls: type) -> Layout:
    """Returns the layout of the annotations for a dataset's class; 'images' if the class reads another layout."""
    for layout, (reader, unchanged) in READERS.items():
        for base in cls.__mro__:
            if (base.__module__.split('.')[0], base.__name__) == reader and all(
                    getattr(cls, name) is getattr(base, name) for name in unchanged):
                return layout
    return 'images'


def build_unread(cfg: dict[str, Any]) -> BaseDataset:
    """Builds a dataset with its paths and classes, but without reading files."""
    return DATASETS.build({**cfg, 'lazy_init': True, 'pipeline': []})


def classes_of(dataset: BaseDataset) -> list[str]:
    """Returns the classes of a dataset, in the order of its labels; empty if it does not state them."""
    classes = dataset.metainfo.get('classes') or ()
    return [classes] if isinstance(classes, str) else list(classes)


def loads(cfg: dict[str, Any], what: str) -> bool:
    """Returns whether a transform in a dataset's pipeline sets `what`, such as 'with_mask' of LoadAnnotations."""
    return any(isinstance(transform, dict) and transform.get(what) for transform in cfg.get('pipeline') or ())
