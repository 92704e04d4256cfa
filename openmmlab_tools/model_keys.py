"""Finds the keys of a model's config that depend on the classes of the data, or on the number of predicted boxes.

It knows all kinds of heads in mmdet and mmseg. New configs set these keys, and checks compare them with the data.
"""
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mmengine.registry import MODELS

from openmmlab_tools.config_walk import dicts, walk
from openmmlab_tools.registry import find

NUMBERS = ('num_classes', 'num_things_classes', 'num_stuff_classes')
QUERIES = ('num_queries', 'num_proposals')
# Parts of a model that do not predict the classes of the data: they predict object or background, persons, or nothing.
OTHER_PARTS = ('backbone', 'neck', 'data_preprocessor', 'rpn_head', 'reid', 'tracker', 'language_model')
# Heads that do not predict the classes of the data: they predict boundaries, persons, image classes or depths. The last
# two heads compare regions with texts; their `num_classes` is the largest number of texts. A `semantic_head` with
# `num_classes` is for label maps that are given in addition to objects.
OTHER_HEADS = ('STDCHead', 'LinearReIDHead', 'LinearClsHead', 'VPDDepthHead', 'GroundingDINOHead', 'ATSSVLFusionHead')
# Requirements of some models, in addition to images with boxes, masks or label maps, by keys that only these models
# have.
DEMANDS = {
    'language_model': 'the names of classes as texts',
    'tracker': 'videos', 'track_head': 'videos', 'reid': 'videos',
    'semi_train_cfg': 'images without annotations, too',
    'teacher_backbone': 'a teacher that was trained on it',
    'semantic_head': 'a label map beside the objects of each image',
}
DEMANDS_OF_TYPES = {'FastRCNN': 'files of proposals', 'CenterNetHead': 'test images padded by RandomCenterCropPad',
                    'PIDHead': 'edges of classes (GenerateEdge in the pipeline)'}
# Heads that support a single class only.
HEADS_OF_ONE_CLASS = ('MultiInstanceBBoxHead',)


class Classes(NamedTuple):
    """The classes of data, in the order of labels. In panoptic data, the stuff classes come last."""
    names: Sequence[str]
    stuff: int | None = None  # how many of the names are stuff; None: the data is not panoptic

    @property
    def things(self) -> int:
        return len(self.names) - (self.stuff or 0)

    def number(self, key: str) -> int:
        """Returns the needed value of a key in `NUMBERS`."""
        return self.stuff or 0 if key == 'num_stuff_classes' else self.things


@dataclass(frozen=True)
class Key:
    """A key of a model's config that depends on the data."""
    part: dict[str, Any]  # contains the key
    path: str  # the path to the part, with dots, such as 'model.bbox_head'
    name: str
    value: Any  # the value in the config, or the default of the class
    needed: Any

    def set(self) -> None:
        self.part[self.name] = self.needed

    def __str__(self) -> str:
        return f'{self.path}.{self.name}'


def _arguments(part: Mapping[str, Any], names: Sequence[str], scope: str | None) -> dict[str, Any]:
    """Returns the given names that the class of a part accepts as arguments, with their values in the config, or the
    defaults.

    If a class accepts at least one of the names, its base classes are not searched. A name without a value and a
    default is left out: such a class, for example mmseg's IterativeDecodeHead, computes the value from its parts.
    """
    cls = find(MODELS, part.get('type'), part.get('_scope_', scope)) if part.get('type') else None
    for base in cls.__mro__ if isinstance(cls, type) else ():
        parameters = inspect.signature(vars(base)['__init__']).parameters if '__init__' in vars(base) else {}
        if taken := [parameters[name] for name in names if name in parameters]:
            return {parameter.name: part.get(parameter.name, parameter.default) for parameter in taken
                    if parameter.name in part or parameter.default is not parameter.empty}
        if parameters and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return {name: part[name] for name in names if name in part}


def keys_of_classes(model: Mapping[str, Any], classes: Classes, scope: str | None) -> Iterator[Key]:
    """Yields the keys of a model that depend on the classes of its data, each with the value that it needs.

    These are numbers of classes, `class_weight` that is a list or a file, `out_channels` of binary segmentors, and the
    `vocabulary` of text encoders. An encoder with another `dataset_name` reads no vocabulary.
    """
    yield from _keys(model, 'model', classes, 0, scope)


def _keys(part: Any, path: str, classes: Classes, above: int, scope: str | None) -> Iterator[Key]:
    """Yields the keys of a part and of the parts in it. `above` is the number of classes of the head that contains the
    part.
    """
    if isinstance(part, list | tuple):
        for index, item in enumerate(part):
            yield from _keys(item, f'{path}.{index}', classes, above, scope)
    kind = str(part.get('type')).rpartition('.')[2] if isinstance(part, Mapping) else OTHER_HEADS[0]
    if kind in OTHER_HEADS:
        return
    if path == 'model.text_encoder':
        for name, needed in (('dataset_name', None), ('vocabulary', list(classes.names))):
            yield Key(part, path, name, part.get(name), needed)
        return
    numbers = _arguments(part, NUMBERS, scope)
    if path.endswith('semantic_head') and 'num_classes' in numbers:
        return
    for name, value in numbers.items():
        yield Key(part, path, name, value, classes.number(name))
    if numbers:
        # A panoptic FPN's label map has all objects as one more class.
        above = sum(map(classes.number, numbers)) if kind != 'PanopticFPNHead' else classes.number(
            'num_stuff_classes') + 1
        channels = part.get('out_channels')
        if isinstance(channels, int) and channels in (1, numbers.get('num_classes')) and 'channels' in part:
            # One channel is enough for two classes.
            yield Key(part, path, 'out_channels', channels, channels if (channels, above) == (1, 2) else above)
    weights = part.get('class_weight')
    if isinstance(weights, str) or (isinstance(weights, list | tuple) and above):
        yield Key(part, path, 'class_weight', weights, None if isinstance(weights, str) else _weights(
            list(weights), above, _has_no_object(part, path)))
    for name, item in part.items():
        if name not in OTHER_PARTS and isinstance(item, Mapping | list | tuple):
            yield from _keys(item, f'{path}.{name}', classes, above, scope)


def _has_no_object(loss: Mapping[str, Any], path: str) -> bool:
    """Returns whether a loss has a further class for 'no object'. Losses of boxes and queries have it if they use a
    softmax.
    """
    names = path.rpartition('.')[2], loss.get('loss_name')  # mmseg's SAN sets the second name
    return not loss.get('use_sigmoid') and not {'loss_cls', 'loss_cls_ce'}.isdisjoint(names)


def _weights(weights: list[float], number: int, has_no_object: bool) -> list[float]:
    """Returns a weight for each class, and one for 'no object'. If the config has weights for other classes, all become
    equal.
    """
    if len(weights) == number + has_no_object:
        return weights
    of_classes, last = (weights[:-1], weights[-1:]) if has_no_object else (weights, [])
    return [of_classes[0] if len({*of_classes}) == 1 else 1.] * number + last


def demands(model: Mapping[str, Any]) -> dict[str, str]:
    """Returns what a model requires in addition to images with boxes, masks or label maps, and the key that shows this.
    """
    keys: dict[str, str] = {}  # by demand
    for names, part in walk(model, ('model',)):
        path = '.'.join(map(str, names))
        for key, demand in DEMANDS.items():
            if part.get(key):
                keys.setdefault(demand, f'{path}.{key}')
        if (kind := str(part.get('type')).rpartition('.')[2]) in DEMANDS_OF_TYPES:
            keys.setdefault(DEMANDS_OF_TYPES[kind], f'{path}.type={kind}')
    return keys


def keys_of_queries(model: Mapping[str, Any], scope: str | None) -> list[Key]:
    """Returns the keys with the number of queries, if each query of a detector predicts one box. `needed` is their
    present value. Most detectors and all segmentors have no such key.
    """
    if 'decode_head' in model:
        return []
    return [Key(part, '.'.join(map(str, path)), name, value, value) for path, part in walk(model, ('model',))
            for name, value in _arguments(part, QUERIES, scope).items() if isinstance(value, int)]


def limits_of_boxes(model: Mapping[str, Any], classes: Classes, scope: str | None) -> Iterator[Key]:
    """Yields the limits of detections, each with the value that it needs: at most the number of scores.

    Detectors with queries choose the best of the scores of all queries and classes, and fail if there are fewer. With
    masks in a RoI head, as QueryInst, there must be as many as queries, because mmdet keeps both in one table.
    """
    for queries in keys_of_queries(model, scope):
        scores = queries.value * (len(classes.names) if _scores_classes(model, scope) else 1)
        is_table = bool((model.get('roi_head') or {}).get('mask_head'))
        test: Any = model.get('test_cfg') or {}
        part, path = (test['rcnn'], 'model.test_cfg.rcnn') if 'roi_head' in model else (test, 'model.test_cfg')
        name, default = ('max_per_image', 100) if 'panoptic_fusion_head' in model else ('max_per_img', 0)
        value = part.get(name, default)
        if value:
            yield Key(part, path, name, value, queries.value if is_table else min(value, scores))


def _scores_classes(model: Mapping[str, Any], scope: str | None) -> bool:
    """Tells whether each class of a query has a score of its own: in DETR with a softmax, only the best class has."""
    head = model.get('bbox_head')
    if not isinstance(head, Mapping):
        return True
    loss = head.get('loss_cls') or dict(type='CrossEntropyLoss')
    return bool(_arguments(loss, ['use_sigmoid'], scope).get('use_sigmoid', True))


def number_of_boxes(model: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Yields keys that limit how many boxes a detector finds: the part, the name, and how many times the most boxes of
    an image the value should be.
    """
    for settings, names in ((model.get('train_cfg'), dict(max_per_img=1, nms_pre=2)), (model.get('test_cfg'), dict(
            max_per_img=1, max_per_image=1, topk=1, corner_topk=1, top_k=1, nms_pre=2))):
        for _, part in walk(settings or {}):
            for name, times in names.items():
                if isinstance(part.get(name), int):
                    yield part, name, times


def slides_without_windows(model: Mapping[str, Any], scope: str | None) -> bool:
    """Tells whether a segmentor predicts in windows (mode 'slide') with a head of mmseg that makes masks of the whole
    image for each window: Mask2Former's, but no class of another package.
    """
    cls = find(MODELS, dicts(model.get('decode_head'))[-1].get('type'), scope) if model.get('decode_head') else None
    return (model.get('test_cfg') or {}).get('mode') == 'slide' and cls is not None and (
        cls.__module__.split('.')[0], cls.__name__) == ('mmseg', 'Mask2FormerHead')
