"""Writes a config that trains on a folder of data."""
import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict

from cpvt_mm.swap import TARGETS, read_config, swap_backbone
from cpvt_mm.zoo.members import APACHE, RELEASED, SCHEME
from openmmlab_tools.checkpoints.fetching import cache_file, on_hub, size_of
from openmmlab_tools.config_files import base_for, check_model_of, check_new, to_delta
from openmmlab_tools.config_text import assignments, comment
from openmmlab_tools.data.uses import task_of
from openmmlab_tools.errors import UserError
from openmmlab_tools.files import check_free, write_text
from openmmlab_tools.own_data.channels import Bands, measure_bands
from openmmlab_tools.own_data.config_of_data import about_early_stop, check_hooks, config_of
from openmmlab_tools.own_data.config_options import BATCH, FOR_CPU, ITERS, TASKS, ConfigOptions, model_in
from openmmlab_tools.own_data.descriptions import describe_data
from openmmlab_tools.own_data.fitted_model import (
    fit_model,
    forget_pipelines,
    is_for_cpu,
    most_boxes,
    start_at_random,
    take_bands,
)
from openmmlab_tools.own_data.image_sizes import Fit, fit_images, padding_share
from openmmlab_tools.own_data.trained_model import VALIDATE_FIRST, is_trained, sizes_as_trained, slow_down
from openmmlab_tools.own_data.written_labels import write_labels
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.layouts import ReadingOptions
from openmmlab_tools.readers.own_data import about_masks, find_data, task_for

MANY = 15  # objects in an image, on average
# padding='exact' is for batches of which padding is at least this: a packed step has up to 1.4 times the operators.
PAYS = 0.3
CONFIGS = Path(__file__).parent / '.mim/configs'
DEFAULT = 'pvtv2-b0'  # the smallest arch with ImageNet weights
# Configs of each task: for other archs, for nano, and for pvtv2-b0.
BASES = dict(
    boxes=('boxes/faster-rcnn_pyramid-cpvt-s_fpn_boxes.py', 'boxes/faster-rcnn_pyramid-cpvt-nano_fpn_boxes.py',
           'boxes/faster-rcnn_pvtv2-b0_fpn_boxes.py'),
    instances=('nuclei/mask-rcnn_pyramid-cpvt-s_fpn_nuclei.py', 'nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py',
               'nuclei/mask-rcnn_pvtv2-b0-pretrained_fpn_nuclei.py'),
    semantic=('camvid/upernet_pyramid-cpvt-s_camvid-360x480.py', 'camvid/upernet_pyramid-cpvt-nano_camvid-192x256.py',
              'camvid/upernet_pvtv2-b0-pretrained_camvid-192x256.py'))


@dataclass
class _Start:
    """The model that a new config starts from."""
    name: str  # of the config to inherit from
    old: Config  # that config
    new: Config  # with another backbone, if the user names one
    load_from: str | None  # a checkpoint of the model
    is_trained: bool  # whether that has more than the backbone: then the data must not change what it was trained with
    sentences: list[str]  # about its weights, and what it cannot keep

    def changes(self) -> dict[str, Any]:
        """Returns the changes in a config that inherits from the old config."""
        hooks = self.new.get('custom_hooks')
        return {key: delta for key in ('model', 'optim_wrapper', 'auto_scale_lr') if (
            delta := to_delta(self.old.get(key) or {}, self.new.get(key) or {}))} | (
                {} if hooks == self.old.get('custom_hooks') else dict(custom_hooks=hooks))


def new_config(source: str | Path, out: str | Path, *options: Any, **named: Any) -> list[str]:
    """Writes a config that trains on your data, and the labels in the form that mmdet and mmseg read.

    The labels are written to the folder `<out>_annotations`, and images that are contained in annotation files to
    `<out>_images`.

    Args:
        source: A folder with images and labels, a file in COCO's form, or the `data.yaml` of YOLO.
        out: The `.py` file to write. It must not exist.
        options: Arguments of `ConfigOptions`, by position.
        named: Arguments of `ConfigOptions`, by name.

    Returns:
        Sentences that describe the data, the size of images, and the weights. The config starts with them as well.

    Raises:
        UserError: If the data or the model is not for the task, a number is not positive, a file exists already, or
            weights cannot be downloaded.
        TypeError: If `ConfigOptions` has no such argument.
    """
    asked, out = ConfigOptions(*options, **named), Path(out)
    check_new(out)
    check_free(out.with_name(f'{out.stem}_annotations'))
    base, load_from = model_in(Path(asked.base)) if asked.base and Path(asked.base).is_dir() else (asked.base, None)
    model = read_config(base) if base else None
    of_model = task_of(model) if model else None
    of_model = 'instances' if of_model == 'panoptic' else of_model  # which Mask2Former learns, too
    known_task = asked.task or of_model  # None: the data determines it
    options_of_data = ReadingOptions(None if known_task is None else known_task == 'semantic', asked.masks,
                                     Path(asked.colours) if asked.colours else None,
                                     out.with_name(f'{out.stem}_images').resolve())
    data = find_data(Path(source), options_of_data, asked.val, asked.seed, asked.group_by)
    task = task_for(data, asked.task, of_model)
    data.notes += about_masks(data, task) if known_task is None else []
    start = _choose_model(asked, task, base, model, load_from)
    bands = measure_bands(data, start.load_from)
    fit = _fit(asked, task, data, bands, start)
    is_small = is_for_cpu(start.new.model)
    batch = asked.batch or BATCH[is_small]
    check_hooks(start.new, asked)
    padding = pad_exactly(start.new.model, padding_share(data, fit, batch), batch)
    lines = [*describe_data(data, fit, bands), *start.sentences, *padding, *_hint(data, task, base)]
    with base_for(start.name, out) as inherited:
        labels = write_labels(out.with_name(f'{out.stem}_annotations'), data)
        settings = config_of(task, asked.iters or ITERS[is_small], batch, asked, data, labels, fit, bands,
                        most_boxes(start.new.model))
        if start.is_trained:
            settings['default_hooks'] |= VALIDATE_FIRST
        lines += about_early_stop(settings, asked.early_stop)
        values = {'_base_': inherited, **settings, **start.changes(), 'load_from': start.load_from}
        write_text(out, f'{comment(lines)}\n{assignments(values)}')
    return lines


def _choose_model(asked: ConfigOptions, task: str, base: str | None, model: Config | None, load_from: str | None
                  ) -> _Start:
    """Returns the model to start from: the model in the user's config, or this project's model for the task."""
    arch = asked.arch or (None if base else DEFAULT)
    name = base or str(CONFIGS / BASES[task][FOR_CPU.index(arch) + 1 if arch in FOR_CPU else 0])
    old, sentences = model or read_config(name), list[str]()
    if asked.random_weights and load_from:
        raise UserError(f'the model starts from {load_from}: leave --random-weights out, or pass only its config.')
    new = copy.deepcopy(old)
    if arch:
        checkpoint, sentence = weights_of(arch, asked.random_weights)
        sentences = [sentence]
        if checkpoint and not base and arch in FOR_CPU:  # configs of nano start from random weights
            new.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=checkpoint)
        elif base or arch not in FOR_CPU:
            backbone = dict(backbone=arch) if arch in TARGETS else dict(arch=arch, checkpoint=checkpoint)
            new = swap_backbone(old, optimizer=bool(base), **backbone).config
    if not asked.random_weights:
        load_from = load_from or new.get('load_from')
    if load_from:
        sentences.append(f'The model starts from {load_from}.')
    return _Start(name, old, new, load_from, load_from is not None and is_trained(new, load_from), sentences)


def _fit(asked: ConfigOptions, task: str, data: LabelledData, bands: Bands | None, start: _Start) -> Fit:
    """Chooses sizes of images, and fits the model to data, in place; a UserError if it cannot be built then."""
    model = start.new.model
    if asked.random_weights:
        start_at_random(start.new)
    if bands:
        take_bands(model, bands.channels)
    limit = TASKS[task].limits[is_for_cpu(model)]
    fit = fit_images(data, limit, asked.scale)
    if start.is_trained:
        changes = ['The model is already trained, so its anchors and normalization are kept.']
        if not asked.scale and (as_trained := sizes_as_trained(start.old, data, limit)):
            fit, sizes = as_trained
            changes.append(f'Images are {sizes}, as in its tests; to change this, pass --scale WIDTH HEIGHT.')
        start.sentences.append(' '.join([
            *changes, slow_down(start.new),
            'It is validated once before training, so that you can see whether training helps.']))
    forget_pipelines(start.new)
    start.sentences += fit_model(model, data, fit, start.new.get('default_scope'), start.is_trained)
    check_model_of(start.new, start.load_from)
    return fit


def weights_of(arch: str, random_weights: bool) -> tuple[str | None, str]:
    """Returns the address of released weights of a backbone, unless it starts at random, and a sentence.

    Raises a UserError if they cannot be had.
    """
    name = arch if arch in RELEASED else f'pyramid-cpvt-{arch}'
    if name not in RELEASED:
        return None, f'The backbone starts from random weights, because {arch} has no pretrained weights.'
    if random_weights:
        return None, 'The backbone starts from random weights, because you passed --random-weights.'
    address, urls = SCHEME + name, RELEASED[name].files
    size = next((size for url in urls if (size := size_of(url)) is not None), None)
    if size is None:
        url = next(url for url in urls if not on_hub(url))
        raise UserError(f'the ImageNet weights {address} could not be downloaded, because the internet does not '
                        f'answer. Download {url} on another machine and save it as {cache_file(url)}. Or pass '
                        '--arch nano, whose weights are part of the package, or --random-weights, which needs more '
                        'images and time.')
    terms = '' if RELEASED[name].licence == APACHE else f', under the {RELEASED[name].licence}'
    kind = 'ImageNet weights' if '://' in urls[0] else 'weights that an ImageNet teacher taught without labels,'
    return address, (f'The backbone starts from the {kind} {address} ({size / 1e6:.0f} MB{terms}). To start from '
                     'random weights, pass --random-weights.')


def pad_exactly(model: ConfigDict, share: float, batch: int) -> list[str]:
    """Sets `padding='exact'` for a detector's backbone of this package, if the share of padding in batches is large.

    Returns a sentence with the rule; none for other models. See docs/guides/variable_size.md.
    """
    names = [str(model.get(key, {}).get('type', '')).rpartition('.')[2] for key in ('backbone', 'data_preprocessor')]
    if (names[0] not in ('PyramidCPVT', 'CPVT') or names[1] != 'DetDataPreprocessor'
            or model.backbone.get('padding') == 'exact'):
        return []
    told = f'About {share:.0%} of the pixels in a batch of {batch} are padding.'
    if share < PAYS:
        return [f"{told} The config only sets padding='exact', which skips padding, from {PAYS:.0%} on."]
    model.data_preprocessor.type = 'cpvt_mm.DetDataPreprocessor'
    model.backbone.padding = 'exact'
    return [f"{told} Therefore the config sets padding='exact', which skips the padding. This saves memory. Training "
            "becomes faster on a CPU, but is often slower on a GPU; to turn it off, set model.backbone.padding=None."]


def _hint(data: LabelledData, task: str, base: str | None) -> list[str]:
    """Returns a sentence about weights of a whole model, if they may suit the data."""
    many = len(data.classes) == 1 and sum(len(image.objects) for image in data.splits['train']) >= MANY * len(
        data.splits['train'])
    return ['Do your images show cell nuclei? Then pass --from demo/nuclei (in a clone) to start from a '
            'detector for nuclei, which needs fewer images.'] if many and task == 'instances' and not base else []
