"""Writes a config that trains on a folder of data."""
import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from mmengine.config import Config, ConfigDict

from cpvt_mm.models import PyramidCPVT
from cpvt_mm.models.create import BACKBONES, TWINS_ARCHS
from cpvt_mm.swap import TARGETS, read_config, swap_backbone
from cpvt_mm.swap.writing import base_for, check_model_of, check_new, to_delta
from cpvt_mm.weights.released import APACHE, RELEASED, SCHEME
from openmmlab_data.channels import is_readable, measure_bands
from openmmlab_data.config_of_data import METRICS, config_text, hook_options
from openmmlab_data.converted import write_annotations
from openmmlab_data.form.splits import Data
from openmmlab_data.image_sizes import FOR_CPU, LIMITS, describe_data, fit_images, fit_model, is_for_cpu
from openmmlab_data.readers.formats import Options
from openmmlab_data.readers.own_data import find_data
from openmmlab_runs.batch_size import choose_batch
from openmmlab_runs.checkpoints.fetching import cache_file, on_hub, size_of
from openmmlab_runs.data.config_datasets import plan_checks, task_of
from openmmlab_runs.data.findings import Kind
from openmmlab_runs.data.sizes import check_sizes
from openmmlab_runs.engine import load_config
from openmmlab_runs.errors import UserError
from openmmlab_runs.files import check_free, write_text


def weights_of(arch: str, random_weights: bool) -> tuple[str | None, str]:
    """Returns the address of released weights of a backbone of `ARCHS`, unless it starts at random, and a sentence.

    Raises a UserError if they cannot be had.
    """
    name = arch if arch in RELEASED else f'pyramid-cpvt-{arch}'
    if name not in RELEASED:
        return None, f'The backbone starts from random weights: there are none for {arch}.'
    if random_weights:
        return None, 'The backbone starts from random weights, as you asked.'
    address, urls = SCHEME + name, list(RELEASED[name].files)
    size = next((size for url in urls if (size := size_of(url)) is not None), None)
    if size is None:
        url = next(url for url in urls if not on_hub(url))
        raise UserError(f'the ImageNet weights {address} cannot be had, since the net does not answer: download {url} '
                        f'elsewhere and save it as {cache_file(url)}, or start from random weights with '
                        '--random-weights, which needs more images and time.')
    terms = '' if RELEASED[name].licence == APACHE else f', under the {RELEASED[name].licence}'
    return address, (f'The backbone starts from {address}, weights from ImageNet ({size / 1e6:.0f} MB{terms}); '
                     '--random-weights does without.')


def model_in(folder: Path) -> tuple[str, str]:
    """Returns the config and the checkpoint in a folder with one of each, or raises a UserError."""
    configs = sorted(folder.glob('*.py'))
    checkpoints = sorted(path for path in folder.iterdir() if path.suffix in ('.safetensors', '.pth'))
    if len(configs) != 1 or len(checkpoints) != 1:
        raise UserError(f'folder {folder} has {len(configs)} configs and {len(checkpoints)} checkpoints, but must have '
                        'one of each: name a config.')
    return str(configs[0]), str(checkpoints[0].resolve())

MANY = 15  # objects of an image, on average
CONFIGS = Path(__file__).parent / '.mim/configs'
ARCHS = (*TWINS_ARCHS, *(name for name, (cls, *_) in BACKBONES.items() if cls is PyramidCPVT and name in RELEASED
                         and not name.startswith('pyramid-')))
DEFAULT = 'pvtv2-b0'  # the smallest with weights from ImageNet
# The config of each task, for other archs and for those of `FOR_CPU`.
BASES = dict(
    boxes=('boxes/faster-rcnn_pyramid-cpvt-s_fpn_boxes.py', 'boxes/faster-rcnn_pyramid-cpvt-nano_fpn_boxes.py',
           'boxes/faster-rcnn_pvtv2-b0_fpn_boxes.py'),
    instances=('nuclei/mask-rcnn_pyramid-cpvt-s_fpn_nuclei.py', 'nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py',
               'nuclei/mask-rcnn_pvtv2-b0-pretrained_fpn_nuclei.py'),
    semantic=('camvid/upernet_pyramid-cpvt-s_camvid-360x480.py', 'camvid/upernet_pyramid-cpvt-nano_camvid-192x256.py',
              'camvid/upernet_pvtv2-b0-pretrained_camvid-192x256.py'))
Swap = Callable[[Config], Config]


def new_config(source: str | Path, out: str | Path, task: str | None = None, arch: str | None = None,
               scale: tuple[int, int] | None = None, iters: int | None = None,
               batch: int | Literal['auto'] | None = None, val: str | None = None, seed: int = 0,
               base: str | None = None, swap: Swap | None = None, masks: str | None = None,
               colours: str | Path | None = None, drop_empty: bool = False, random_weights: bool = False,
               early_stop: int | None = None, ema: bool = False) -> list[str]:
    """Writes a config that trains on the data of a folder; returns sentences that describe the data.

    Annotations that mmdet and mmseg cannot read, and splits drawn here, are written to `<out>_annotations`.

    Args:
        source: See `find_data`.
        out: The `.py` file to write. It must not exist.
        task: 'boxes', 'instances' or 'semantic'. Defaults to None: the most that the annotations allow.
        arch: One of `ARCHS`. Defaults to None: 'pvtv2-b0', or the backbone of `base`.
        scale: Width and height of images in training. Defaults to None: measured.
        iters: Number of iterations. Defaults to None: 400 for nano and pvtv2-b0, else 8000.
        batch: Batch size; 'auto' measures the largest that fits on this machine's GPU, if there is one (see
            `openmmlab_runs.batch_size`). Defaults to None: 4 for nano and pvtv2-b0, else 8.
        val: See `find_data`. Defaults to None.
        seed: See `find_data`. Defaults to 0.
        base: A config to take the model from, a path or a name such as 'mmdet::retinanet/...', or a folder with a
            config and a checkpoint of the whole model, such as demo/nuclei. Defaults to None: one of this project.
        swap: Changes the model of `base`, such as a partial of `swap_backbone`. Defaults to None: by `arch`.
        masks: The values of label maps: 'classes', 'colours' or 'instances'. Defaults to None: guessed.
        colours: A file with a class and its colour in each line. Defaults to None: one in the folder, if there is one.
        drop_empty: Whether to leave out images without objects in training. Defaults to False.
        random_weights: Whether the backbone starts at random. Defaults to False: from ImageNet weights, if there are
            any for `arch`.
        early_stop: After how many validations in a row without a better result training ends; there are up to 20, not
            4. Defaults to None: after the last iteration.
        ema: Whether validations and checkpoints have weights averaged over about the last twentieth of the iterations.
            Defaults to False.

    Raises:
        UserError: If the data or the model is not for the task, a number is not positive, a file exists already, or
            weights cannot be had.
    """
    is_measured, batch = batch == 'auto', None if batch == 'auto' else batch
    for option, number, least in (('iters', iters, 2), ('batch', batch, 1), ('scale', min(scale or (1,)), 1),
                                  ('early_stop', early_stop, 1)):
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
    bands = None if load_from and is_readable(data) else measure_bands(data)
    if bands and load_from:
        raise UserError(f'images of {data.root} have {bands.channels} channels that are no colours of 8 bits, but '
                        f'{load_from} was trained with such: convert them, or name only its config.')
    if arch is None and base is None:
        arch = DEFAULT
    name = base or str(CONFIGS / BASES[task][FOR_CPU.index(arch) + 1 if arch in FOR_CPU else 0])
    old = model or read_config(name)
    start = []
    if not swap and arch:
        checkpoint, sentence = weights_of(arch, random_weights)
        start = [sentence]
        if base or arch not in FOR_CPU:
            which = dict(backbone=arch) if arch in TARGETS else dict(arch=arch, checkpoint=checkpoint)
            swap = partial(swap_backbone, schedule=bool(base), **which)
    new = swap(old) if swap else copy.deepcopy(old)
    is_small = is_for_cpu(new.model)
    iters, batch = iters or (400 if is_small else 8000), batch or (4 if is_small else 8)
    if random_weights and load_from:
        raise UserError(f'the model starts from {load_from}: leave --random-weights out, or name only its config.')
    if random_weights:
        start_at_random(new)
    pad_exactly(new.model)
    if bands:
        take_bands(new.model, bands.channels)
    fit = fit_images(data, LIMITS[task][is_small], scale)
    fit_model(new.model, data, fit)
    check_model_of(new, load_from)
    lines = [*describe_data(data, fit, bands), *start, *_hints(data, task, base, load_from)]
    changes = {key: delta for key in ('model', 'optim_wrapper') if (delta := to_delta(old[key], new[key]))}
    hooks = hook_options(new, METRICS[task], early_stop, ema)

    with base_for(name, out) as inherited:

        def text(batch: int) -> str:
            return config_text(lines, inherited, data, fit, task, iters, batch, annotations, changes, load_from,
                               drop_empty, bands, hooks, 20 if early_stop else 4)

        write_annotations(annotations, data)
        write_text(out, text(batch))
        if is_measured:
            batch, sentence = choose_batch(load_config(out), batch)
            lines.append(sentence)
            write_text(out, text(batch))
    return lines


def check_written(cfg: Config) -> tuple[list[str], bool]:
    """Checks the data of a written config, by the headers of files; returns sentences, and whether training refuses it.
    """
    first: dict[Kind, str] = {}
    is_fatal = False
    for plan in plan_checks(cfg):
        for one in (*plan.findings, *check_sizes(plan.samples)):
            is_fatal |= one.kind in plan.fatal
            told = f'{"error" if one.is_error else "note"}, {one.kind.value}: {one.file} {one.detail}'
            first.setdefault(one.kind, told)
    return [*first.values()], is_fatal


def start_at_random(cfg: Config) -> None:
    """Removes the backbone's weights from a config, and the rates for them, in place; a UserError if it cannot."""
    if 'backbone' not in cfg.model:
        raise UserError(f'the model {cfg.model.type} has no backbone of its own: leave --random-weights out.')
    cfg.model.backbone.init_cfg = None
    for part in (cfg.model, cfg.model.backbone):
        if part.get('pretrained'):
            part.pretrained = None
    keys = ((cfg.get('optim_wrapper') or {}).get('paramwise_cfg') or {}).get('custom_keys') or {}
    if 'backbone' in keys:
        keys['backbone'] = dict(lr_mult=1., decay_mult=1.)


def take_bands(model: ConfigDict, channels: int) -> None:
    """Makes a model take images of some channels that the pipeline has normalized, in place."""
    if not (model.get('backbone') and model.get('data_preprocessor')):
        raise UserError(f'the model {model.type} has no backbone and data_preprocessor of its own, so it takes colours '
                        'only: convert the images to RGB of 8 bits, or name another model.')
    model.backbone.in_channels = channels
    for key in ('mean', 'std'):
        model.data_preprocessor[key] = None
    for key in ('bgr_to_rgb', 'rgb_to_bgr'):
        if model.data_preprocessor.get(key):
            model.data_preprocessor[key] = False


def pad_exactly(model: ConfigDict) -> None:
    """Makes images of several sizes in a batch of a detector independent of each other; see docs/variable_size.md."""
    names = [str(model.get(key, {}).get('type', '')).rpartition('.')[2] for key in ('backbone', 'data_preprocessor')]
    if names[0] in ('PyramidCPVT', 'CPVT') and names[1] == 'DetDataPreprocessor':
        model.data_preprocessor.type = 'cpvt_mm.DetDataPreprocessor'
        model.backbone.padding = 'exact'


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
