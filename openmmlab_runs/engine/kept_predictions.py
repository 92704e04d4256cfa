"""Writes the predictions of a test: boxes and masks as COCO has results, or label maps."""
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from openmmlab_runs.config_walk import dicts
from openmmlab_runs.errors import UserError, show
from openmmlab_runs.files import unique_name, write_image


class KeepPredictionsHook(Hook):
    """Lets the metric of COCO in a config write `predictions.bbox.json` and `predictions.segm.json` to a folder. Writes
    the label maps of a segmentor itself: `<name of image>.png`, with the number of a class at each pixel, from 0.

    The second image of a name in another folder is `<name>_2.png`.

    Raises:
        UserError: If the folder has files, or the config has neither that metric nor a segmentor.
    """

    def __init__(self, cfg: Config, folder: Path) -> None:
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise UserError(f'--out {folder} is a file, or has files: choose a new folder.')
        self.folder, self.names = folder, set[str]()
        self.is_semantic = cfg.get('default_scope') == 'mmseg'
        metrics = [metric for metric in dicts(cfg.test_evaluator) if str(metric.get('type')).endswith('CocoMetric')]
        if not metrics and not self.is_semantic:
            raise UserError(f'--out keeps boxes by the metric of COCO, and label maps, but config {cfg.filename} has '
                            'neither: leave it out.')
        for metric in metrics:
            metric['outfile_prefix'] = str(folder / 'predictions')

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        samples: Sequence[Any] = outputs if self.is_semantic else ()
        for sample in samples:
            label_map = sample.pred_sem_seg.data[0].cpu().numpy()
            name = unique_name(Path(sample.img_path).stem, self.names)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_image(self.folder / f'{name}.png', label_map.astype(np.min_scalar_type(int(label_map.max()))),
                        runner.visualizer.dataset_meta.get('palette'))

    def after_test_epoch(self, runner: Runner, metrics: Any = None) -> None:
        show(f'The predictions are in {self.folder}.')
