"""A runner that tells which file of the data is at fault."""
from typing import Any

from mmengine.dataset import Compose
from mmengine.dist import is_main_process
from mmengine.evaluator import Evaluator
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from cpvt_mm.datasets.checking.before_training import check_before_training
from cpvt_mm.datasets.checking.coco import read_coco
from cpvt_mm.datasets.checking.label_maps import Labels
from cpvt_mm.datasets.checking.layouts import layout_of, unwrap_built
from cpvt_mm.datasets.checking.pipeline import CheckedPipeline


class CheckingRunner(Runner):
    """mmengine's runner; annotation files are checked before they are read, images and label maps when they are."""

    @staticmethod
    def build_dataloader(dataloader: DataLoader | dict[str, Any], seed: int | None = None,
                         diff_rank_seed: bool = False) -> DataLoader:
        """As of `Runner`; every loop builds its data here, before workers start.

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
                dataset.pipeline = CheckedPipeline(dataset.pipeline.transforms, _labels_of(dataset))
        return loader

    def build_evaluator(self, evaluator: Evaluator | dict[str, Any] | list[dict[str, Any]]) -> Evaluator:
        """As of `Runner`; metrics may read an annotation file of their own.

        Raises:
            UserError: If that is of no use.
        """
        try:
            return super().build_evaluator(evaluator)
        except Exception:  # mmdet's does not name the file
            for metric in evaluator if isinstance(evaluator, list) else [evaluator]:
                if isinstance(metric, dict) and metric.get('type') in ('CocoMetric', 'mmdet.CocoMetric'):
                    read_coco(metric['ann_file'], metric.get('backend_args'))
            raise


def _labels_of(dataset: Any) -> Labels | None:
    """The classes that loaded label maps may have."""
    if layout_of(type(dataset)) != 'label maps':
        return None
    return Labels(len(dataset.metainfo['classes']), ignore_index=dataset.ignore_index)
