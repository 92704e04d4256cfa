"""Predictions that do not depend on the batch: the backbone runs on all images, neck and heads on each image alone."""
import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import Tensor, nn

from cpvt_mm.models.backbone import Backbone
from cpvt_mm.models.several_sizes import image_of
from cpvt_mm.registry import HOOKS
from cpvt_mm.tokens.batch_info import BatchInfo, Output, TellsSizes, told_about
from cpvt_mm.tokens.grid import Size
from cpvt_mm.tokens.sizes import round_up
from openmmlab_tools.errors import UserError

if TYPE_CHECKING:
    from mmdet.models import DeformableDETR


def make_batch_invariant(model: Any) -> None:
    """Makes the predictions of a detector or segmentor independent of the other images in a batch, up to rounding.

    The backbone computes the maps of all images at once. Then `model.predict` runs for each image with its maps. The
    image is padded as if it were alone in the batch. Training does not change. If an image has fewer feature locations
    than `num_queries`, two-stage Deformable DETR and DINO use one query for each location, also in training.

    Raises:
        UserError: If the model is no detector or segmentor, or its backbone is not from cpvt_mm with `padding='exact'`.
    """
    # By their names, because a detector does not need mmseg, whose import takes about a second.
    bases = {f'{cls.__module__.partition(".")[0]}.{cls.__name__}' for cls in type(model).__mro__}
    if not bases & {'mmdet.BaseDetector', 'mmseg.BaseSegmentor'}:
        raise UserError(f'the model is a {type(model).__name__}, but BatchInvariantHook supports only detectors of '
                        'mmdet and segmentors of mmseg: remove BatchInvariantHook.')
    backbone = getattr(model, 'backbone', None)
    if not isinstance(backbone, Backbone) or backbone.padding != 'exact':
        options = f' with padding={backbone.padding}' if isinstance(backbone, Backbone) else ''
        raise UserError(f'model.backbone is a {type(backbone).__name__}{options}, but predictions that do not depend '
                        "on the batch need a backbone of cpvt_mm with padding='exact': change it, or remove "
                        'BatchInvariantHook.')
    if 'predict' in vars(model):
        return  # an earlier call has done it
    model.predict = partial(predict_each, model, model.predict)
    if 'mmdet.DeformableDETR' in bases and model.as_two_stage and 'mmdet.DDQDETR' not in bases:
        Queries(model)  # DDQ completes its queries itself


class TakesSeveralSizes(TellsSizes):
    """Mixin for both data preprocessors: passes image sizes to the backbone, and prepares models for batches of several
    sizes.
    """

    def take_several_sizes(self, model: nn.Module) -> bool:
        """Prepares a model with `make_batch_invariant`; returns whether its test batches may contain images of several
        sizes.
        """
        try:
            make_batch_invariant(model)
        except UserError:  # its backbone depends on the batch
            return False
        return True


@HOOKS.register_module()
class BatchInvariantHook(Hook):
    """Calls `make_batch_invariant` for the model of a run, with the same errors."""

    def before_run(self, runner: Runner) -> None:
        make_batch_invariant(getattr(runner.model, 'module', runner.model))


def predict_each(model: Any, predict: Callable[..., list[Any]], images: Tensor, samples: list[Any] | None = None,
                 **options: Any) -> list[Any]:
    """Runs the backbone once for a batch `(B, C, H, W)`, and a model's `predict` for each image with its maps."""
    info = told_about(images)
    if info is None or len(images) == 1:  # without sizes, the backbone raises an error
        return predict(images, samples, **options)
    whole = images.shape[2], images.shape[3]
    slides = (getattr(model, 'test_cfg', None) or {}).get('mode') == 'slide'  # then the backbone gets windows
    maps = None if slides else model.backbone(images)
    predictions = []
    for i, size in enumerate(info.sizes):
        padded = size_alone(model.data_preprocessor, size)
        image = images[i:i + 1, :, :padded[0], :padded[1]].clone()  # without the sizes of the other images
        BatchInfo.of_images(image, [size]).attach(image)
        sample = samples and describe_alone(samples[i], size, padded)
        with given_maps(model.backbone, maps and model.backbone.fit_outputs(
                tuple(image_of(output, i) for output in maps), whole, padded)):
            predictions += predict(image, sample and [sample], **options)
    return predictions


def size_alone(preprocessor: Any, size: Size) -> Size:
    """Returns the height and width to which a data preprocessor pads an image if it is alone in a test."""
    test_cfg = getattr(preprocessor, 'test_cfg', None) or {}  # of mmseg
    if test_cfg.get('size'):
        return max(size[0], test_cfg['size'][0]), max(size[1], test_cfg['size'][1])
    divisor = int(getattr(preprocessor, 'pad_size_divisor', None) or test_cfg.get('size_divisor') or 1)
    return round_up(size[0], divisor), round_up(size[1], divisor)


def describe_alone(sample: Any, size: Size, padded: Size) -> Any:
    """Sets the padding in the metainfo of a data sample as if its image were alone; returns the sample."""
    sample.set_metainfo(dict(batch_input_shape=padded, pad_shape=padded))
    if 'img_padding_size' in sample.metainfo:  # mmseg crops predictions by it
        sample.set_metainfo(dict(img_padding_size=(0, padded[1] - size[1], 0, padded[0] - size[0])))
    return sample


@contextmanager
def given_maps(backbone: Backbone, maps: tuple[Output, ...] | None) -> Iterator[None]:
    """In the `with` block, the backbone returns maps that are computed already; without maps, it computes them."""
    if maps is None:
        yield
        return
    backbone.forward = lambda *args, **kwargs: maps  # type: ignore[method-assign]
    try:
        yield
    finally:
        del backbone.forward


class Queries:
    """Limits the queries of a two-stage detector to the locations of its images: mmdet fails if these are fewer."""

    def __init__(self, detector: 'DeformableDETR') -> None:
        self.detector = detector
        self.total = detector.num_queries
        detector.bbox_head.test_cfg = copy.copy(detector.bbox_head.test_cfg)  # the config keeps its dict
        self.max_per_img = detector.bbox_head.test_cfg.get('max_per_img')  # None: one box for each query
        detector.encoder.register_forward_pre_hook(self.choose, with_kwargs=True)
        detector.decoder.register_forward_pre_hook(self.cut, with_kwargs=True)

    def choose(self, encoder: nn.Module, args: object, kwargs: dict[str, Any]) -> None:
        """Sets how many of the locations, `query` in `(B, N, C)`, become queries."""
        detector, locations = self.detector, kwargs['query'].shape[1]
        detector.num_queries = number = min(self.total, locations)
        head = detector.bbox_head
        if self.max_per_img is not None:
            choices = number * (head.num_classes if head.loss_cls.use_sigmoid else 1)
            head.test_cfg['max_per_img'] = min(self.max_per_img, choices)
        if locations < self.total:
            # mmengine logs the same warning once.
            print_log(f'images with fewer locations than num_queries={self.total} use one query for each location, '
                      'so the model predicts fewer boxes for them.', 'current', logging.WARNING)

    def cut(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
            ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Cuts queries `(B, Q, C)`, and their mask, to the number of boxes; the denoising queries come first."""
        number = kwargs['reference_points'].shape[1]
        kwargs['query'] = kwargs['query'][:, :number]
        if kwargs.get('self_attn_mask') is not None:
            kwargs['self_attn_mask'] = kwargs['self_attn_mask'][:number, :number]
        return args, kwargs
