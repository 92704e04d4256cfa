"""Checks the data of a run during loading."""
from collections.abc import Iterator
from typing import Any

from mmengine.dataset import BaseDataset, Compose
from torch import nn
from torch.utils.data import DataLoader

from cpvt_mm.data.checking.layouts import classes_of, layout_of, unwrap_built
from cpvt_mm.data.checking.pipeline import CheckedPipeline


def check_while_loading(loader: DataLoader, model: nn.Module, cfg: dict[str, Any]) -> None:
    """Replaces the pipelines of a loader's datasets by pipelines that check the data and name the faulty file.

    Args:
        loader: Changed in place.
        model: The model of the run. Its heads may have more classes than the dataset.
        cfg: The config of the run, which may set ignored labels (`ignore_index`).
    """
    for dataset in unwrap_built(loader.dataset):
        # Only mmengine's own class: pipelines of other classes may do more than run their transforms.
        if type(getattr(dataset, 'pipeline', None)) is Compose:
            layout = layout_of(type(dataset))
            dataset.pipeline = CheckedPipeline(
                dataset.pipeline.transforms, layout == 'coco',
                _num_classes(dataset, model) if layout == 'label maps' else None, _ignored(dataset, model, cfg))


def _num_classes(dataset: BaseDataset, model: nn.Module) -> int | None:
    """Returns the number of classes that label maps may have; None if the dataset does not state its classes."""
    classes = classes_of(dataset)
    heads = [getattr(module, 'num_classes', None) for name, module in model.named_modules() if 'decode_head' in name]
    return max([len(classes), *(number for number in heads if isinstance(number, int))]) if classes else None


def _ignored(dataset: BaseDataset, model: nn.Module, cfg: dict[str, Any]) -> set[int]:
    """Returns the labels that the dataset, a part of the model or a metric ignores, and 255, which means no label."""
    modules = [getattr(module, 'ignore_index', None) for module in model.modules()]
    return {255, getattr(dataset, 'ignore_index', 255), *_values(cfg, 'ignore_index'),
            *(label for label in modules if isinstance(label, int))}


def _values(cfg: Any, key: str) -> Iterator[int]:
    """Yields all ints that a config sets for a key, at any depth."""
    if isinstance(cfg, dict):
        if isinstance(cfg.get(key), int):
            yield cfg[key]
        cfg = list(cfg.values())
    for one in cfg if isinstance(cfg, list | tuple) else ():
        yield from _values(one, key)
