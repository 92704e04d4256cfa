"""Extra work of a test, beside its metrics: it merges predictions of several views of each image, and keeps them."""
import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.hooks import Hook
from mmengine.registry import MODELS
from mmengine.runner import Runner

from openmmlab_tools.checkpoints.fitting import inner
from openmmlab_tools.config_walk import dicts
from openmmlab_tools.data.datasets import unwrap
from openmmlab_tools.errors import UserError, show
from openmmlab_tools.files import unique_name, write_image

SCALES = (1., 0.75, 1.25)  # the first view, without a flip, is that of a test without views
OWN = 'write tta_model and tta_pipeline into the config, as configs of mmdet and mmseg do'


class MergeViewsHook(Hook):
    """Wraps a loaded model for a test in the config's `tta_model`, and gives the test data its `tta_pipeline`.

    A config that has none gets them: the model of its library, and views by flips and `SCALES`. They are written into
    the config, in place, so that the copy in the work dir has them. Masks of instances cannot be merged by mmdet.
    Without an own `tta_model`, only boxes are evaluated, which is told.
    """

    def __init__(self, cfg: Config) -> None:
        own = cfg.get('tta_pipeline')
        datasets = [dataset for _, dataset in unwrap(cfg.test_dataloader.dataset, '')]
        for dataset in datasets:
            dataset['pipeline'] = copy.deepcopy(own) if own else views_of(dataset.get('pipeline') or [])
        cfg.tta_pipeline = own or copy.deepcopy(datasets[0]['pipeline'])
        cfg.tta_model = cfg.get('tta_model') or _merging_model(cfg)
        self.model = cfg.tta_model

    def before_test(self, runner: Runner) -> None:
        runner.model = MODELS.build(dict(self.model, module=inner(runner.model)))


def views_of(pipeline: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a test pipeline of mmdet or mmseg that makes all views, two of each of `SCALES`.

    Raises:
        UserError: If it packs another kind of data, or resizes in a way that cannot be scaled.
    """
    steps = [dict(step) for step in pipeline]
    kinds = [str(step.get('type')).rpartition('.')[2] for step in steps]
    sizes = [{'scale', 'scale_factor'} & step.keys() for step in steps]
    unknown = [kind for kind, keys in zip(kinds, sizes, strict=True) if 'Resize' in kind and not keys]
    if not kinds or kinds[-1] not in ('PackDetInputs', 'PackSegInputs') or unknown:
        fault = (unknown or [*kinds[-1:], 'an empty pipeline'])[0]
        raise UserError(f'--tta cannot make views with {fault} in the test pipeline: {OWN}.')
    if not any(sizes):
        steps.insert(1, dict(type='Resize', scale_factor=1., keep_ratio=True))
        sizes.insert(1, {'scale_factor'})
    at = next(index for index, keys in enumerate(sizes) if keys)
    if 'meta_keys' in steps[-1]:
        steps[-1]['meta_keys'] = (*dict.fromkeys((*steps[-1]['meta_keys'], 'flip', 'flip_direction')),)
    resized = [{**steps[at], **{key: _times(steps[at][key], factor) for key in sizes[at]}} for factor in SCALES]
    flipped = [dict(type='RandomFlip', prob=prob, direction='horizontal') for prob in (0., 1.)]
    return [*steps[:at], dict(type='TestTimeAug', transforms=[resized, flipped, *([step] for step in steps[at + 1:])])]


def _times(size: Any, factor: float) -> Any:
    """Multiplies a `scale`, whole numbers, or a `scale_factor`."""
    if isinstance(size, list | tuple):
        return tuple(_times(one, factor) for one in size)
    return round(size * factor) if isinstance(size, int) else size * factor


def _merging_model(cfg: Config) -> dict[str, Any]:
    if cfg.default_scope == 'mmseg':
        return dict(type='SegTTAModel')
    for metric in dicts(cfg.test_evaluator):
        asked = metric.get('metric') or ()
        if 'segm' not in asked:
            continue
        if 'bbox' not in asked:
            raise UserError("--tta merges boxes only, but test_evaluator.metric is segm: set it to 'bbox', or leave "
                            '--tta out.')
        metric['metric'] = 'bbox'
        show('note: masks of several views cannot be merged, so that only boxes are evaluated.')
    test_cfg = cfg.model.get('test_cfg') or {}
    test_cfg = test_cfg.get('rcnn') or test_cfg
    return dict(type='openmmlab_tools.BoxTTAModel',
                tta_cfg=ConfigDict(nms=test_cfg.get('nms') or dict(type='nms', iou_threshold=0.5),
                                   max_per_img=test_cfg.get('max_per_img', 100)))


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
