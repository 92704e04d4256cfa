"""Writes a config that trains on a folder of data."""
import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mmengine.config import Config

from cpvt_mm.swap import read_config, swap_backbone
from cpvt_mm.swap.writing import base_of, check_new, to_delta
from openmmlab_runs.data.converted import write_annotations
from openmmlab_runs.data.fitting import LIMITS, describe_data, fit_images, fit_model
from openmmlab_runs.data.own_data import Options, find_data
from openmmlab_runs.data.plans import task_of
from openmmlab_runs.data.splits import Data
from openmmlab_runs.errors import UserError
from openmmlab_runs.files import check_free, write_text

from .start import model_in, released_weights
from .template import config_text

MANY = 15  # objects of an image, on average
CONFIGS = Path(__file__).parents[1] / '.mim/configs'
# The config of each task, for the other archs and for nano.
BASES = dict(
    boxes=('boxes/faster-rcnn_pyramid-cpvt-s_fpn_boxes.py', 'boxes/faster-rcnn_pyramid-cpvt-nano_fpn_boxes.py'),
    instances=('nuclei/mask-rcnn_pyramid-cpvt-s_fpn_nuclei.py', 'nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'),
    semantic=('camvid/upernet_pyramid-cpvt-s_camvid-360x480.py', 'camvid/upernet_pyramid-cpvt-nano_camvid-192x256.py'))
Swap = Callable[[Config], Config]


def new_config(source: str | Path, out: str | Path, task: str | None = None, arch: str | None = None,
               scale: tuple[int, int] | None = None, iters: int | None = None, batch: int | None = None,
               val: str = '0.2', seed: int = 0, base: str | None = None, swap: Swap | None = None,
               masks: str | None = None, colours: str | Path | None = None, drop_empty: bool = False) -> list[str]:
    """Writes a config that trains on the data of a folder.

    Annotations that mmdet and mmseg cannot read as they are, and splits that are drawn here, are written to
    `<out>_annotations`.

    Args:
        source: See `find_data`.
        out: The `.py` file to write. It must not exist.
        task: 'boxes', 'instances' or 'semantic'. Defaults to None: the most that the annotations allow.
        arch: The `arch` of `PyramidCPVT`. Defaults to None: 'nano', or the backbone of `base`.
        scale: Width and height of images in training. Defaults to None: measured.
        iters: Number of iterations. Defaults to None: 400 for nano, else 8000.
        batch: Batch size. Defaults to None: 4 for nano, else 8.
        val: See `find_data`.
        seed: See `find_data`.
        base: A config to take the model from, a path or a name such as 'mmdet::retinanet/...', or a folder with a
            config and a checkpoint of the whole model, such as demo/nuclei. Defaults to None: one of this project.
        swap: Changes the model of `base`, such as a partial of `swap_backbone`. Defaults to None: by `arch`.
        masks: What the values of label maps are: 'classes', 'colours' or 'instances'. Defaults to None: guessed.
        colours: A file with a class and its colour in each line. Defaults to None: one in the folder, if there is one.
        drop_empty: Whether to leave out images without objects in training. Defaults to False.

    Returns:
        Sentences that describe the data.

    Raises:
        UserError: If the data cannot be used for the task, the model is for another task, a number is not positive, or
            a file exists already.
    """
    for option, number, least in (('iters', iters, 2), ('batch', batch, 1), ('scale', min(scale or (1,)), 1)):
        if number is not None and number < least:
            raise UserError(f'{option} is {number}, but must be at least {least}.')
    out = Path(out)
    annotations = out.with_name(f'{out.stem}_annotations')
    check_new(out)
    check_free(annotations)
    base, load_from = model_in(Path(base)) if base and Path(base).is_dir() else (base, None)
    model = read_config(base) if base else None
    of_model = task_of(model) if model else None
    wanted = task or of_model
    data = find_data(Path(source), Options(None if wanted is None else wanted == 'semantic', masks,
                                           None if colours is None else Path(colours)), val, seed)
    task = _task(data, task, of_model)
    is_nano = (arch or (model.model.get('backbone', {}).get('arch') if model else 'nano')) == 'nano'
    iters, batch = iters or (400 if is_nano else 8000), batch or (4 if is_nano else 8)
    name = base or str(CONFIGS / BASES[task][is_nano])
    old = model or read_config(name)
    start = []
    if not swap and arch and name != str(CONFIGS / BASES[task][True]):
        checkpoint, sentence = released_weights(arch)
        start = [sentence]
        swap = partial(swap_backbone, arch=arch, checkpoint=checkpoint, schedule=bool(base))
    new = swap(old) if swap else copy.deepcopy(old)
    fit = fit_images(data, LIMITS[task][is_nano], scale)
    fit_model(new.model, data, fit)
    lines = [*describe_data(data, fit), *start, *_hints(data, task, base, load_from)]
    changes = {key: delta for key in ('model', 'optim_wrapper') if (delta := to_delta(old[key], new[key]))}
    text = config_text(lines, base_of(name, out), data, fit, task, iters, batch, annotations,
                       changes, load_from, drop_empty)
    write_annotations(annotations, data)
    write_text(out, text)
    return lines


def _hints(data: Data, task: str, base: str | None, load_from: str | None) -> list[str]:
    """Returns sentences about weights of a whole model."""
    if load_from:
        return [f'The model starts from {load_from}.']
    train = data.splits['train'].coco
    many = len(data.classes) == 1 and len(train['annotations']) >= MANY * len(train['images'])
    return ['Are these cells in microscope images? --from demo/nuclei starts from a detector of nuclei, and needs few '
            'images.'] if many and task == 'instances' and not base else []


def _task(data: Data, task: str | None, of_model: str | None) -> str:
    """Returns the task: the given one, or that of the model, or the most that the annotations allow."""
    has_masks = all(annotation.get('segmentation') for split in data.splits.values()
                    for annotation in split.coco['annotations'])
    possible = ['semantic'] if data.is_semantic else ['instances', 'boxes'] if has_masks else ['boxes']
    task = task or of_model or possible[0]
    if task not in possible:
        raise UserError(f'{data.root} has {data.form} for {" or ".join(possible)}, but the task is {task}: choose '
                        'another --task, or another model.')
    if of_model not in (None, task):
        raise UserError(f'the model is for {of_model}, but the task is {task}: choose another --task or model.')
    return task
