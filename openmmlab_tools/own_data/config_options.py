"""Options of a new config, and what it has for each task."""
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openmmlab_tools.errors import UserError


@dataclass(frozen=True)
class Task:
    metric: str  # that counts, as mmengine's CheckpointHook calls it
    least_gain: float  # of the metric, for an improvement
    limits: tuple[int, int]  # the longest side of images in training, in pixels: on a GPU, and on a CPU
    load: dict[str, Any]  # the transform that loads annotations
    pack: str  # the transform that packs a sample
    evaluator: dict[str, Any]


COCO_METRIC = dict(type='CocoMetric', classwise=True)
TASKS = dict(
    boxes=Task('coco/bbox_mAP', 0.001, (1333, 480), dict(type='LoadAnnotations', with_bbox=True), 'PackDetInputs',
               dict(COCO_METRIC, metric='bbox')),
    instances=Task('coco/segm_mAP', 0.001, (1333, 480), dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
                   'PackDetInputs', dict(COCO_METRIC, metric=['bbox', 'segm'])),
    semantic=Task('mIoU', 0.1, (1024, 320), dict(type='LoadAnnotations'), 'PackSegInputs',  # a metric in percent
                  dict(type='IoUMetric', iou_metrics=['mIoU'])))
FOR_CPU = ('nano', 'pvtv2-b0')  # archs whose configs have narrow necks and heads
ITERS = (8000, 400)  # training iterations: for other archs, and for archs in `FOR_CPU`
BATCH = (8, 4)
WARM_UP = 2, 500  # the least and the most iterations; with one iteration, the rate would stay at its start
VALIDATIONS = (4, 20)  # the most validations, without and with early stopping


@dataclass(frozen=True)
class ConfigOptions:
    """Options of a new config. All have defaults.

    Args:
        task: 'boxes', 'instances' or 'semantic'. Defaults to None: the task that uses most of the annotations.
        arch: The backbone. Defaults to None: 'pvtv2-b0', or the backbone of `base`.
        scale: Width and height of images in training, in pixels. Defaults to None: chosen from your images.
        iters: Number of iterations. Defaults to None: 400 for nano and pvtv2-b0, else 8000.
        batch: Batch size. Defaults to None: 4 for nano and pvtv2-b0, else 8.
        val: See `find_data`. Defaults to None.
        seed: See `find_data`. Defaults to 0.
        base: The config of the model to start from: a path, a name such as 'mmdet::retinanet/...', or a folder with a
            config and a checkpoint of the whole model, such as demo/nuclei. Defaults to None: a config of this project.
        masks: The meaning of values in label maps: 'classes', 'colours' or 'instances'. Defaults to None: guessed.
        colours: A file with a class and its colour in each line. Defaults to None: such a file in the folder, if it
            exists.
        drop_empty: Whether to leave out images without objects in training. Defaults to False.
        random_weights: Whether the backbone starts at random. Defaults to False: from ImageNet weights, if there are
            any for `arch`.
        early_stop: Training stops after this number of consecutive validations without improvement. It also sets up to
            20 validations instead of 4. Defaults to None: training stops after the last iteration.
        ema: Whether validations and checkpoints use weights that are averaged over about the last twentieth of the
            iterations. Defaults to False.
        group_by: See `find_data`. Defaults to None.
    """
    task: str | None = None
    arch: str | None = None
    scale: tuple[int, int] | None = None
    iters: int | None = None
    batch: int | None = None
    val: str | None = None
    seed: int = 0
    base: str | None = None
    masks: str | None = None
    colours: str | Path | None = None
    drop_empty: bool = False
    random_weights: bool = False
    early_stop: int | None = None
    ema: bool = False
    group_by: str | None = None

    def __post_init__(self) -> None:
        for option, number, least in (('iters', self.iters, 2), ('batch', self.batch, 1),
                                      ('early_stop', self.early_stop, 1), ('scale', min(self.scale or (1,)), 1)):
            if isinstance(number, int) and number < least:
                raise UserError(f'{option} is {number}, but must be at least {least}.')


def model_in(folder: Path) -> tuple[str, str]:
    """Returns the config and the checkpoint in a folder; raises a UserError if it contains several or none."""
    configs = sorted(folder.glob('*.py'))
    checkpoints = sorted(path for path in folder.iterdir() if path.suffix in ('.safetensors', '.pth'))
    if len(configs) != 1 or len(checkpoints) != 1:
        raise UserError(f'folder {folder} has {len(configs)} configs and {len(checkpoints)} checkpoints, but must have '
                        'one of each: name a config.')
    return str(configs[0]), str(checkpoints[0].resolve())
