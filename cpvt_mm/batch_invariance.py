"""Batch-invariant predictions: what necks and heads of mmdet and mmseg need beside a backbone with `padding='exact'`.

`batch_layers` has the hooks for layers, `batch_queries` those for detectors that choose queries among locations.
"""
from functools import partial
from typing import Any

from mmcv.cnn import Scale
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from cpvt_mm.batch_layers import DENSE, Arguments, Batch
from cpvt_mm.batch_queries import Queries, average_losses
from cpvt_mm.mask_transformer import PlainMaskHead, PlainMaskSegHead
from cpvt_mm.models.backbone import Backbone
from cpvt_mm.models.neck import CeilMaxPool2d, SimpleFeaturePyramid
from cpvt_mm.registry import HOOKS
from openmmlab_runs.errors import UserError
from openmmlab_runs.libraries import require

require('mmdet', 'mmseg')

from mmdet import models  # noqa: E402
from mmdet.models.layers import SinePositionalEncoding  # noqa: E402
from mmdet.models.task_modules import DeltaXYWHBBoxCoder  # noqa: E402
from mmseg.models import Mask2FormerHead, UPerHead  # noqa: E402
from mmseg.models import MaskFormerHead as SegMaskFormerHead  # noqa: E402

# Parts that compute each region, or each image, alone.
SEPARATE = (models.StandardRoIHead, models.CascadeRoIHead, models.MaskFormerFusionHead)
MASKS = (models.MaskFormerHead, models.Mask2FormerHead, SegMaskFormerHead, Mask2FormerHead, PlainMaskHead,
         PlainMaskSegHead)
KNOWN = (models.FPN, models.ChannelMapper, models.CSPNeXtPAFPN, SimpleFeaturePyramid, *DENSE, *SEPARATE, UPerHead,
         models.DETRHead, models.DeformableDETRHead, models.DINOHead, models.DDQDETRHead, *MASKS)
DETECTORS = (models.DETR, models.DeformableDETR, models.DINO, models.DDQDETR)  # with an encoder and a decoder
# Heads whose losses need not depend on the batch.
TRAINED = (models.DETRHead, models.DeformableDETRHead, models.DINOHead, *MASKS)
# Layers that compute each cell of a map from itself, or get a hook here. Norms with stored statistics are known, too.
LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.LayerNorm, nn.GroupNorm, nn.ReLU, nn.GELU, nn.SiLU, nn.Dropout2d,
          nn.AdaptiveAvgPool2d, CeilMaxPool2d, nn.Sequential, nn.ModuleList, nn.Linear, nn.Embedding, nn.Dropout,
          nn.Identity, nn.Upsample, Scale, SinePositionalEncoding)


def make_batch_invariant(model: nn.Module, training: bool = False) -> None:
    """Registers forward hooks that make predictions in eval mode independent of the other images of a batch.

    They are those of the image alone, padded to multiples of 32 pixels, up to rounding.

    Args:
        model: Detector or segmentor of a backbone of cpvt_mm with `padding='exact'`, and parts of types in `KNOWN`. A
            second call can add `training`, and nothing else.
        training: Whether this is also for what images add to the losses, for heads of types in `TRAINED`; denoising
            queries, and the points at which masks are compared, stay random. Defaults to False: training does not
            change.

    Raises:
        UserError: If a part or setting is not known; in a forward pass, if a side of the batch is no multiple of 32.
    """
    skipped = ('data_preprocessor',) if training else ('data_preprocessor', 'auxiliary_head')
    parts = {name: part for name, part in model.named_children() if name not in skipped}
    if training and not {type(part) for part in parts.values()} & {*TRAINED}:
        raise UserError(f'the losses of a {type(model).__name__} depend on the batch; those of DETR, Deformable DETR, '
                        'DINO, MaskFormer and Mask2Former need not: leave out training.')
    for name, part in parts.items():
        own = type(model) in DETECTORS and name not in ('backbone', 'neck', 'bbox_head')
        if needed := _needed(part, getattr(model, 'test_cfg', None), own):
            raise UserError(f'model.{name} is a {type(part).__name__}, but for predictions that do not depend on '
                            f'the batch, it must {needed}: change it, or leave out BatchInvariantHook.')
    if known := vars(model).get('batch_invariance'):
        known.training |= training
        return
    vars(model)['batch_invariance'] = batch = Batch(training)
    for part in parts.values():
        if isinstance(part, Backbone):
            part.register_forward_pre_hook(batch.begin)
        elif not isinstance(part, SEPARATE):
            batch.follow(part)
        if isinstance(part, MASKS):
            part.__dict__['loss_by_feat'] = partial(average_losses, batch, part, part.loss_by_feat)
        if isinstance(part, SegMaskFormerHead):
            model.register_forward_pre_hook(_fill_batch, with_kwargs=True)
    if getattr(model, 'as_two_stage', isinstance(model, models.DINO)):
        Queries(batch, model)


@HOOKS.register_module()
class BatchInvariantHook(Hook):
    """Calls `make_batch_invariant` for the model of a run, with the same arguments and errors."""

    def __init__(self, training: bool = False) -> None:
        self.training = training

    def before_run(self, runner: Runner) -> None:
        make_batch_invariant(getattr(runner.model, 'module', runner.model), self.training)


def _fill_batch(segmentor: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Makes the size of images that of the batch: MaskFormer of mmseg takes the first image's size for that."""
    images, samples = args[0] if args else kwargs['inputs'], args[1] if args[1:] else kwargs.get('data_samples')
    for sample in samples or []:
        sample.set_metainfo(dict(img_shape=tuple(images.shape[2:])))
    return args, kwargs


def _needed(part: nn.Module, test_cfg: dict[str, object] | None, own: bool) -> str:
    """Returns what a part of a model must be or have; '' if it is known, or a detector's own, with its layers."""
    if isinstance(part, Backbone):
        fits = part.padding == 'exact' and not any(32 % stride for stride in part.strides)
        return '' if fits else "have padding='exact', and strides that divide 32"
    if type(part) not in KNOWN and not own:
        return f'be one of CPVT, PyramidCPVT, {", ".join(dict.fromkeys(known.__name__ for known in KNOWN))}'
    if isinstance(part, models.StandardRoIHead | models.CascadeRoIHead):
        coders = [layer.bbox_coder for layer in part.modules() if hasattr(layer, 'bbox_coder')]
        fits = all(coder.clip_border for coder in coders) and all(
            getattr(layer, 'aligned', False) for layer in part.modules() if hasattr(layer, 'spatial_scale'))
        return '' if fits else 'have clip_border=True in its bbox_coder, and RoIAlign with aligned=True'
    for name, layer in part.named_modules():
        if not (isinstance(layer, LAYERS) or [*layer.children()] or getattr(layer, 'track_running_stats', False)
                or 'loss' in name or isinstance(part, models.MaskFormerFusionHead)):
            return f'have no {type(layer).__name__} ({name})'
    segments, mode = hasattr(part, 'align_corners'), (test_cfg or {}).get('mode', 'whole')
    if segments and (part.align_corners or mode != 'whole'):
        return "have align_corners=False, and the model mode='whole' in test_cfg"
    if isinstance(part, DENSE):
        key = 'min_bbox_size' if isinstance(part, models.RPNHead) else 'score_thr'
        if not part.use_sigmoid_cls or (part.test_cfg or {}).get(key, -1) < 0:
            return f'have use_sigmoid=True, and {key} of at least 0'
    if isinstance(part, models.RPNHead):
        coder = part.bbox_coder
        fits = coder.clip_border and type(coder) is DeltaXYWHBBoxCoder and not coder.add_ctr_clamp
        return '' if fits else 'have a DeltaXYWHBBoxCoder with clip_border'
    return ''
