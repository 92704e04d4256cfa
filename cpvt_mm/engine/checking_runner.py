"""A runner that tells which file of the data is at fault."""
from collections.abc import Iterator
from typing import Any

from mmengine.dataset import BaseDataset, Compose
from mmengine.dist import is_main_process
from mmengine.evaluator import Evaluator
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from cpvt_mm.datasets.checking.before_training import check_before_training
from cpvt_mm.datasets.checking.coco import read_coco
from cpvt_mm.datasets.checking.layouts import classes_of, layout_of, unwrap_built
from cpvt_mm.datasets.checking.pipeline import CheckedPipeline


class CheckingRunner(Runner):
    """mmengine's runner; annotation files are checked before they are read, images and label maps when they are."""

    def build_dataloader(self, dataloader: DataLoader | dict[str, Any], seed: int | None = None,
                         diff_rank_seed: bool = False) -> DataLoader:
        """As of `Runner`, but of an instance, which knows the model; every loop builds its data here.

        Raises:
            FileNotFoundError: If an annotation file or a folder does not exist.
            UserError: If annotations are of no use.
        """
        if isinstance(dataloader, dict) and isinstance(dataloader['dataset'], dict) and is_main_process():
            check_before_training(dataloader['dataset'])
        loader = Runner.build_dataloader(dataloader, seed, diff_rank_seed)
        for dataset in unwrap_built(loader.dataset):
            # mmengine's own class: a pipeline of another may do more than run its transforms.
            if type(getattr(dataset, 'pipeline', None)) is Compose:
                layout = layout_of(type(dataset))
                dataset.pipeline = CheckedPipeline(
                    dataset.pipeline.transforms, layout == 'coco',
                    self._num_classes(dataset) if layout == 'label maps' else None, self._ignored(dataset))
        return loader

    def _num_classes(self, dataset: BaseDataset) -> int | None:
        """How many classes label maps may have: a head may have more than the dataset."""
        classes = classes_of(dataset)
        heads = [getattr(module, 'num_classes', None) for name, module in self.model.named_modules()
                 if 'decode_head' in name]
        return max([len(classes), *(number for number in heads if isinstance(number, int))]) if classes else None

    def _ignored(self, dataset: BaseDataset) -> set[int]:
        """Labels that the dataset, a part of the model or a metric ignores, and 255, which stands for none."""
        return {255, getattr(dataset, 'ignore_index', 255), *_values(self.cfg.to_dict(), 'ignore_index'),
                *(module.ignore_index for module in self.model.modules()
                  if isinstance(getattr(module, 'ignore_index', None), int))}

    def build_evaluator(self, evaluator: Evaluator | dict[str, Any] | list[dict[str, Any]]) -> Evaluator:
        """As of `Runner`; metrics may read an annotation file of their own.

        Raises:
            UserError: If that is of no use.
        """
        try:
            return super().build_evaluator(evaluator)
        except Exception:  # mmdet's does not name the file
            for metric in evaluator if isinstance(evaluator, list) else [evaluator]:
                if isinstance(metric, dict) and metric.get('type') in ('CocoMetric', 'mmdet.CocoMetric') and (
                        metric.get('ann_file')):
                    read_coco(metric['ann_file'], metric.get('backend_args'))
            raise


def _values(cfg: Any, key: str) -> Iterator[int]:
    """The whole numbers that are set for a key anywhere in a config."""
    if isinstance(cfg, dict):
        if isinstance(cfg.get(key), int):
            yield cfg[key]
        cfg = list(cfg.values())
    for one in cfg if isinstance(cfg, list | tuple) else ():
        yield from _values(one, key)
