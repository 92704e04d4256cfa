"""A config and its data: the datasets, and for each of them the loaders, metrics and model that use it."""
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmengine.config import Config

from openmmlab_tools.checkpoints.loading import bands_loader, model_of
from openmmlab_tools.config_walk import dicts

from .datasets import SPLITS, loads_masks, unwrap


@dataclass(frozen=True)
class DatasetUse:
    """A dataset of a config, and the parts of the config that use it."""
    splits: list[str]  # whose dataloaders have the dataset: 'train', 'val', 'test', or several of them
    name: str  # the dotted name of the dataset's config
    dataset: dict[str, Any] = field(default_factory=dict)  # its config
    scope: str | None = None
    model: dict[str, Any] = field(default_factory=dict)  # see `model_of`
    loaders: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name, such as 'train_dataloader'
    evaluators: dict[str, Any] = field(default_factory=dict)  # by name, such as 'val_evaluator'; None for none
    file: str = ''  # of the config
    load_from: str | None = None  # the weights from which the whole model starts

    @property
    def is_trained(self) -> bool:
        return 'train' in self.splits

    @property
    def is_evaluated(self) -> bool:
        return self.splits != ['train']

    @property
    def needs_masks(self) -> bool:
        return loads_masks(self.dataset) or any(map(asks_for_masks, self.evaluators.values()))

    @property
    def bands(self) -> dict[str, Any] | None:
        """The `LoadBandsFromFile` that loads the images, or None."""
        return bands_loader(next(iter(self.loaders.values())))

    @property
    def ignored_labels(self) -> set[int]:
        """The labels that all heads of mmseg ignore, if the dataset is for training, or else all metrics."""
        readers = (self.model.get('decode_head'), self.model.get('auxiliary_head')) if self.splits[0] == 'train' else (
            self.evaluators.get(f'{self.splits[0]}_evaluator'),)
        parts = [part for reader in readers for part in dicts(reader)]
        return set.intersection(*({part.get('ignore_index', 255)} for part in parts or [{}]))


def uses_of(cfg: Config, splits: Sequence[str] = SPLITS) -> Iterator[DatasetUse]:
    """Yields the datasets of some splits. Most configs validate and test on the same dataset, which comes once."""
    names: dict[str, tuple[list[str], str, dict[str, Any]]] = {}
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        for name, dataset in unwrap(loader['dataset'].to_dict(), f'{split}_dataloader.dataset') if loader else ():
            # Pipelines may augment one dataset differently.
            key = repr({**dataset, 'pipeline': loads_masks(dataset)})
            names.setdefault(key, ([], name, dataset))[0].append(split)
    for users, name, dataset in names.values():
        users = list(dict.fromkeys(users))
        loaders, evaluators = ({f'{split}_{part}': cfg.get(f'{split}_{part}') for split in users}
                               for part in ('dataloader', 'evaluator'))
        yield DatasetUse(users, name, dataset, cfg.default_scope, model_of(cfg), loaders, evaluators, cfg.filename,
                         cfg.get('load_from'))


def task_of(cfg: Config) -> str:
    """Returns the task that a config is for: 'boxes', 'instances', 'panoptic' or 'semantic'."""
    if cfg.get('default_scope') == 'mmseg':
        return 'semantic'
    if any(str(metric.get('type')).endswith('PanopticMetric') for metric in dicts(cfg.get('val_evaluator'))):
        return 'panoptic'
    return 'instances' if asks_for_masks(cfg.get('val_evaluator')) else 'boxes'


def asks_for_masks(evaluator: Any) -> bool:
    """Returns whether a metric in the config of an evaluator compares masks."""
    return any('segm' in (metric.get('metric') or ()) for metric in dicts(evaluator))
