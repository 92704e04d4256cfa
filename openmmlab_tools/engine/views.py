"""Several views of each image in a test: the pipeline that makes them, and the model that merges their predictions."""
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.config import ConfigDict
from mmengine.hooks import Hook
from mmengine.registry import MODELS
from mmengine.runner import Runner

from openmmlab_tools.checkpoints.fitting import inner
from openmmlab_tools.config_walk import dicts
from openmmlab_tools.errors import UserError, show

SCALES = (1., 0.75, 1.25)  # the first view without a flip is the same as in a test without views
OWN = 'write tta_model and tta_pipeline into the config, as configs of mmdet and mmseg do'


class MergeViewsHook(Hook):
    """Wraps the loaded model for a test in the config's `tta_model`, which merges the predictions of all views."""

    def before_test(self, runner: Runner) -> None:
        runner.model = MODELS.build(dict(runner.cfg.tta_model, module=inner(runner.model)))


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
        return tuple(_times(side, factor) for side in size)
    return round(size * factor) if isinstance(size, int) else size * factor


def model_that_merges(scope: str, test_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config of a `tta_model` for a library, with the NMS of a detector's `test_cfg`."""
    if scope == 'mmseg':
        return dict(type='SegTTAModel')
    test_cfg = test_cfg.get('rcnn') or test_cfg
    return dict(type='openmmlab_tools.BoxTTAModel',
                tta_cfg=ConfigDict(nms=test_cfg.get('nms') or dict(type='nms', iou_threshold=0.5),
                                   max_per_img=test_cfg.get('max_per_img', 100)))


def evaluate_boxes_alone(evaluator: Any) -> None:
    """Removes masks from the metrics of an evaluator, in place, because mmdet cannot merge the masks of several views.
    """
    for metric in dicts(evaluator):
        asked = metric.get('metric') or ()
        if 'segm' not in asked:
            continue
        if 'bbox' not in asked:
            raise UserError("--tta merges boxes only, but test_evaluator.metric is segm: set it to 'bbox', or leave "
                            '--tta out.')
        metric['metric'] = 'bbox'
        show('note: masks of several views cannot be merged, so that only boxes are evaluated.')
