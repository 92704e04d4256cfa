"""Sets in a model's config what it needs to know of the data: classes, anchors, sizes and channels."""
import math
from collections.abc import Container
from typing import Any

import numpy as np
from mmengine.config import Config, ConfigDict

from openmmlab_tools.config_walk import arch_of, walk
from openmmlab_tools.errors import UserError
from openmmlab_tools.model_keys import (
    HEADS_OF_ONE_CLASS,
    Classes,
    demands,
    keys_of_classes,
    keys_of_queries,
    limits_of_boxes,
    number_of_boxes,
)
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.texts import some

from .config_options import FOR_CPU
from .image_sizes import Fit

HOOKS_OF_PIPELINES = ('YOLOXModeSwitchHook', 'PipelineSwitchHook')  # of mmdet
STRIDE = 32  # the coarsest of necks that join maps of several strides, which therefore need multiples of it


def is_for_cpu(model: dict[str, Any]) -> bool:
    """Returns whether a model contains a backbone whose arch is in `FOR_CPU`."""
    return any(arch_of(part) in FOR_CPU for path, part in walk(model) if path[-1:] == ('backbone',))


def fit_model(model: dict[str, Any], data: LabelledData, fit: Fit, scope: str | None, is_trained: bool = False
              ) -> list[str]:
    """Sets what depends on the classes, on the sizes of images and boxes, and on the number of boxes, in place. Returns
    sentences on what the model cannot keep.

    Args:
        model: The config of a model.
        data: The data.
        fit: The sizes of images.
        scope: The library of the model, `default_scope` of its config.
        is_trained: Whether anchors and the number of queries stay, because there are weights for them. Defaults to
            False.

    Raises:
        UserError: If the model cannot be fitted to such data.
    """
    check_demands(model, {})
    fit_sizes(model, data, fit, is_trained)
    boxes = max((len(picture.objects) for picture in data.splits['train']), default=0) if len(fit.boxes) else 0
    return [*_fit_limits(model, boxes, scope, is_trained), *fit_classes(model, Classes(data.classes), scope)]


def fit_sizes(model: dict[str, Any], data: LabelledData, fit: Fit, keep_anchors: bool = False) -> None:
    """Sets anchors, and height and width of label maps' crops, in place. Weights for anchors are only right with these
    anchors, so a trained model must keep them.
    """
    for path, part in walk(model):
        # Guided anchoring has two generators, the second of which must have the sizes of the first.
        if (part.get('type') == 'AnchorGenerator' and len(fit.boxes) and path[-1:] == ('anchor_generator',)
                and not keep_anchors):
            _fit_anchors(part, fit.boxes)
    preprocessor = model.get('data_preprocessor') or {}
    if data.is_semantic and 'size' in preprocessor:
        preprocessor['size'] = (fit.crop, fit.crop) if fit.crop else fit.scale[::-1]


def _fit_limits(model: dict[str, Any], boxes: int, scope: str | None, keeps_queries: bool) -> list[str]:
    """Raises queries and limits of detections to the most boxes of an image; a sentence if there are fewer queries."""
    most = min(1000, 100 * math.ceil(boxes / 100))  # 0 without boxes, which changes nothing
    for part, name, times in number_of_boxes(model):
        part[name] = max(part[name], times * most)
    for key in keys_of_queries(model, scope):
        if key.value < boxes and not keeps_queries:
            key.part[key.name] = most
        elif key.value < boxes:
            return [f'An image has {boxes} objects, but {key} is {key.value}, and each query finds one: objects beyond '
                    'that are missed. A start without the weights of the whole model has as many queries as needed.']
    return []


def fit_classes(model: dict[str, Any], classes: Classes, scope: str | None) -> list[str]:
    """Sets all that depends on the classes, in place: see `keys_of_classes` and `limits_of_boxes`. Panoptic heads
    predict objects, and panoptic maps if the data is panoptic. Returns sentences on weights of classes that are lost.

    Raises a UserError if no head has classes, or cannot have as many, or a segmentor would have one class.
    """
    if 'decode_head' in model and len(classes.names) == 1:
        raise UserError(f'the label maps have only the class {classes.names[0]!r}, but training needs at least two '
                        'classes. Also label all other pixels, for example as background.')
    keys = [*keys_of_classes(model, classes, scope)]
    if not keys:
        raise UserError(f'the model {model.get("type")} has no head that predicts classes: choose another model, such '
                        'as a detector or a segmentor.')
    lines = []
    for key in keys:
        kind = str(key.part.get('type')).rpartition('.')[2]
        if kind in HEADS_OF_ONE_CLASS and len(classes.names) > 1:
            raise UserError(f'{key.path} is a {kind}, which learns one class, but the data has {len(classes.names)} '
                            f'({some(classes.names)}): name another model.')
        if key.value != key.needed:
            if key.name == 'class_weight' and (isinstance(key.value, str) or len({*key.value}) > 2):
                lines.append(f'{key} was for other classes, so now all classes have the same weight.')
            key.set()
            if scope == 'mmseg' and key.name == 'class_weight' and len({*(key.needed or ())}) == 1:
                key.part[key.name] = None  # with weights, mmseg's losses fail at pixels that are ignored
    if 'panoptic_fusion_head' in model and 'semantic_head' not in model:
        model.setdefault('test_cfg', {}).update(panoptic_on=classes.stuff is not None, instance_on=True)
        if classes.stuff is not None and 'data_preprocessor' in model:
            model['data_preprocessor'].update(pad_seg=True, seg_pad_value=255)
    for key in limits_of_boxes(model, classes, scope):
        if key.value != key.needed:
            key.set()
    return lines


def check_demands(model: dict[str, Any], met: Container[str]) -> None:
    """Raises a UserError if a model needs what data does not have, of what `demands` returns, and is not met."""
    for demand, key in demands(model).items():
        if demand not in met:
            raise UserError(f'the model {model.get("type")} needs {demand} ({key}), which the data does not have: '
                            'name a '
                            'model without that.')


def forget_pipelines(cfg: Config) -> None:
    """Removes from a config what needs its pipelines, before other data replaces them, in place.

    Hooks that change the pipelines go. If the pipelines pad the images of a detector, the data preprocessor pads them.
    """
    if cfg.get('custom_hooks'):
        cfg.custom_hooks = [hook for hook in cfg.custom_hooks
                            if str(hook.get('type')).rpartition('.')[2] not in HOOKS_OF_PIPELINES]
    preprocessor = cfg.model.get('data_preprocessor') or {}
    pads = any(part.get('type') == 'Pad' for _, part in walk(cfg.get('test_dataloader')))
    is_for_boxes = str(preprocessor.get('type')).endswith('DetDataPreprocessor')
    if pads and is_for_boxes and preprocessor.get('pad_size_divisor', 1) == 1:
        preprocessor.update(pad_size_divisor=STRIDE, pad_mask=True)


def most_boxes(model: dict[str, Any]) -> int:
    """Returns how many boxes of an image a detector predicts at most; 0 if it does not say."""
    return max((part[name] for path, part in walk(model.get('test_cfg') or {}) for name in ('max_per_img',
                'max_per_image') if 'rpn' not in path and name in part), default=0)


def _fit_anchors(anchors: dict[str, Any], boxes: np.ndarray) -> None:
    """Sets scales and ratios such that anchors have the sizes of all but the smallest and largest boxes.

    One anchor in each cell stays one, because heads such as GFL's have no more.
    """
    is_alone = len(anchors.get('ratios', ())) == 1 and len(anchors.get('scales') or (1,)) == 1
    strides = anchors['strides']
    small, large = np.quantile(boxes[:, 0], (.1, .9))
    smallest = max(1., round(float(small) / min(strides), 1))
    if 'octave_base_scale' in anchors:
        anchors['octave_base_scale'] = smallest
    else:
        octaves = 0 if is_alone else max(0, math.ceil(math.log2(large / (smallest * max(strides)))))
        anchors['scales'] = [smallest, smallest * 2**octaves] if octaves else [smallest]
    if is_alone:
        return
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
        raise UserError(f'the model {model.type} has no backbone or data_preprocessor of its own, so it supports '
                        'only RGB images: convert the images to RGB with 8 bits, or choose another model.')
    model.backbone.in_channels = channels
    for key in ('mean', 'std'):
        model.data_preprocessor[key] = None
    for key in ('bgr_to_rgb', 'rgb_to_bgr'):
        if model.data_preprocessor.get(key):
            model.data_preprocessor[key] = False
