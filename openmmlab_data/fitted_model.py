"""Sets in a model's config what it needs to know of the data: classes, anchors, sizes and channels."""
import math
from typing import Any

import numpy as np
from mmengine.config import Config, ConfigDict

from openmmlab_data.form.dataset import LabelledData
from openmmlab_runs.config_walk import arch_of, walk
from openmmlab_runs.errors import UserError

from .config_options import FOR_CPU
from .image_sizes import Fit


def is_for_cpu(model: dict[str, Any]) -> bool:
    """Tells whether a backbone of a model, or of a part of it, is one of `FOR_CPU`."""
    return any(arch_of(part) in FOR_CPU for path, part in walk(model) if path[-1:] == ('backbone',))


def fit_model(model: dict[str, Any], data: LabelledData, fit: Fit, keep_anchors: bool = False) -> None:
    """Sets numbers of classes, anchors, limits of detections, and height and width of label maps' crops, in place.
    Weights for anchors are only right with these anchors, so a trained model must keep them.
    """
    set_classes(model, len(data.classes))
    for _, part in walk(model):
        if part.get('type') == 'AnchorGenerator' and len(fit.boxes) and not keep_anchors:
            _fit_anchors(part, fit.boxes)
    preprocessor = model.get('data_preprocessor') or {}
    if data.is_semantic and 'size' in preprocessor:
        preprocessor['size'] = (fit.crop, fit.crop) if fit.crop else fit.scale[::-1]
    if len(fit.boxes):
        most = min(1000, 100 * math.ceil(max(len(one.objects) for one in data.splits['train']) / 100))
        for _, part in [*walk(model.get('train_cfg') or {}), *walk(model.get('test_cfg') or {})]:
            for key, number in (('max_per_img', most), ('nms_pre', 2 * most)):
                if key in part:
                    part[key] = max(part[key], number)


def most_boxes(model: dict[str, Any]) -> int:
    """Returns how many boxes of an image a detector predicts at most; 0 if it has no `max_per_img`."""
    return max((part['max_per_img'] for path, part in walk(model.get('test_cfg') or {})
                if 'rpn' not in path and 'max_per_img' in part), default=0)


def set_classes(model: dict[str, Any], number: int) -> None:
    """Sets the number of classes in all heads of a model, in place; a region proposal network has one class."""
    for path, part in walk(model):
        if 'num_classes' in part and 'rpn_head' not in path:
            part['num_classes'] = number


def _fit_anchors(anchors: dict[str, Any], boxes: np.ndarray) -> None:
    """Sets scales and ratios such that anchors have the sizes of all but the smallest and largest boxes."""
    strides = anchors['strides']
    small, large = np.quantile(boxes[:, 0], (.1, .9))
    smallest = max(1., round(float(small) / min(strides), 1))
    if 'octave_base_scale' in anchors:
        anchors['octave_base_scale'] = smallest
    else:
        octaves = max(0, math.ceil(math.log2(large / (smallest * max(strides)))))
        anchors['scales'] = [smallest, smallest * 2**octaves] if octaves else [smallest]
    flat, middle, tall = (round(float(ratio), 2) for ratio in np.quantile(boxes[:, 1], (.1, .5, .9)))
    anchors['ratios'] = [0.5, 1.0, 2.0] if flat > 0.4 and tall < 2.5 else [flat, middle, tall]


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
