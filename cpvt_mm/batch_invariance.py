"""Batch-invariant predictions: what necks and heads of mmdet and mmseg need beside a backbone with `padding='exact'`.

An image has the top left of each map. In the padding beside it, convolutions see zeros, interpolation and RoIAlign see
the nearest cell of the image, as they do alone, and no anchor counts.
"""
import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from cpvt_mm.models.backbone import Backbone
from cpvt_mm.models.neck import CeilMaxPool2d, SimpleFeaturePyramid
from cpvt_mm.registry import HOOKS
from cpvt_mm.tokens.batch_info import told_about
from cpvt_mm.tokens.grid import Size, grid_size, round_up
from openmmlab_runs.errors import UserError
from openmmlab_runs.libraries import require

require('mmdet', 'mmseg')

from mmdet.models import FPN, RetinaHead, RPNHead, StandardRoIHead  # noqa: E402
from mmdet.models.task_modules import DeltaXYWHBBoxCoder  # noqa: E402
from mmseg.models import UPerHead  # noqa: E402
from mmseg.models.decode_heads.psp_head import PPM  # noqa: E402

KNOWN = (FPN, SimpleFeaturePyramid, RPNHead, RetinaHead, StandardRoIHead, UPerHead)
# Layers that compute each cell of a map from itself, or get a hook here. Norms with stored statistics are known, too.
LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.LayerNorm, nn.GroupNorm, nn.ReLU, nn.GELU, nn.Dropout2d,
          nn.AdaptiveAvgPool2d, CeilMaxPool2d, nn.Sequential, nn.ModuleList)


def make_batch_invariant(model: nn.Module) -> None:
    """Registers forward hooks that make predictions in eval mode independent of the other images of a batch.

    They are those of the image alone, padded to multiples of 32 pixels, up to rounding. Training does not change.

    Args:
        model: Detector or segmentor of a backbone of cpvt_mm with `padding='exact'`, and parts of types in `KNOWN`.

    Raises:
        UserError: If a part or setting is not known; in a forward pass, if a side of the batch is no multiple of 32.
    """
    batch = _Batch()
    parts = {name: part for name, part in model.named_children() if name not in ('data_preprocessor', 'auxiliary_head')}
    for name, part in parts.items():
        if needed := _needed(part, getattr(model, 'test_cfg', None)):
            raise UserError(f'model.{name} is a {type(part).__name__}, but for predictions that do not depend on '
                            f'the batch, it must {needed}: change it, or leave out BatchInvariantHook.')
    for part in parts.values():
        if isinstance(part, Backbone):
            part.register_forward_pre_hook(batch.begin)
        elif not isinstance(part, StandardRoIHead):  # it computes each RoI alone
            batch.follow(part)


@HOOKS.register_module()
class BatchInvariantHook(Hook):
    """Calls `make_batch_invariant` for the model of a run, with the same errors."""

    def before_run(self, runner: Runner) -> None:
        make_batch_invariant(getattr(runner.model, 'module', runner.model))


def _needed(part: nn.Module, test_cfg: dict[str, object] | None) -> str:
    """Returns what a part of a model must be or have; '' if it is known, with its layers and settings."""
    if isinstance(part, Backbone):
        fits = part.padding == 'exact' and not any(32 % stride for stride in part.strides)
        return '' if fits else "have padding='exact', and strides that divide 32"
    if type(part) not in KNOWN:
        return f'be one of CPVT, PyramidCPVT, {", ".join(known.__name__ for known in KNOWN)}'
    if isinstance(part, StandardRoIHead):
        fits = part.bbox_head.bbox_coder.clip_border and all(
            getattr(layer, 'aligned', False) for layer in part.modules() if hasattr(layer, 'spatial_scale'))
        return '' if fits else 'have clip_border=True in its bbox_coder, and RoIAlign with aligned=True'
    for name, layer in part.named_modules():
        if not (isinstance(layer, LAYERS) or [*layer.children()] or getattr(layer, 'track_running_stats', False)
                or name.startswith('loss')):
            return f'have no {type(layer).__name__} ({name})'
    if isinstance(part, UPerHead) and (part.align_corners or (test_cfg or {}).get('mode', 'whole') != 'whole'):
        return "have align_corners=False, and the model mode='whole' in test_cfg"
    if isinstance(part, RPNHead | RetinaHead):
        coder, key = part.bbox_coder, 'min_bbox_size' if isinstance(part, RPNHead) else 'score_thr'
        fits = (part.use_sigmoid_cls and (part.test_cfg or {}).get(key, -1) >= 0 and coder.clip_border
                and type(coder) is DeltaXYWHBBoxCoder and not coder.add_ctr_clamp)
        return '' if fits else f'have use_sigmoid=True, {key} of at least 0 and a DeltaXYWHBBoxCoder with clip_border'
    return ''


class _Batch:
    """The padding of the batch that is predicted, and forward hooks for layers; they do nothing without padding."""

    sizes: tuple[Size, ...] = ()  # of each image, in multiples of 32 pixels; none without padding
    whole: Size = (32, 32)  # of the batch
    masks: dict[torch.Size, Tensor]  # `(B, 1, H, W)` in bool: which cells of maps of a size are padding

    def follow(self, part: nn.Module) -> None:
        """Registers hooks on a neck, a dense head, or a head for segmentation; a PPM runs as a whole."""
        if isinstance(part, RPNHead | RetinaHead):
            part.register_forward_hook(self.leave_out_anchors)
        for layer in (layer for name, layer in part.named_modules() if 'psp_modules.' not in name):
            if isinstance(layer, PPM | nn.GroupNorm | CeilMaxPool2d):
                layer.register_forward_hook(self.run_each)
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_pre_hook(self.fill)
            if isinstance(layer, nn.Conv2d | nn.GroupNorm) and not isinstance(part, RPNHead | RetinaHead):
                layer.register_forward_hook(self.continue_images)

    def begin(self, backbone: nn.Module, args: tuple[Tensor]) -> None:
        """Takes the sizes of the images `(B, C, H, W)` that the backbone gets."""
        told = None if backbone.training else told_about(args[0])  # without sizes, the backbone raises an error
        self.whole, self.masks = (args[0].shape[2], args[0].shape[3]), {}
        if told and any(side % 32 for side in self.whole):
            raise UserError(f'the batch has {self.whole} pixels, but must have multiples of 32: set '
                            'model.data_preprocessor.pad_size_divisor=32, in mmseg test_cfg.size_divisor=32 there.')
        sizes = tuple((round_up(h, 32), round_up(w, 32)) for h, w in told.sizes) if told else ()
        self.sizes = () if {*sizes} <= {self.whole} else sizes

    def cells(self, x: Tensor) -> list[Size]:
        """Returns rows and columns of each image in a map `(B, C, H, W)`, the stride of which is a power of two."""
        stride = max(1 << ((a - 1) // b).bit_length() for a, b in zip(self.whole, x.shape[2:], strict=True))
        return [grid_size(size, stride) for size in self.sizes]

    def fill(self, layer: nn.Module, args: tuple[Tensor], value: float = 0.) -> Tensor:
        """Returns a map `(B, C, H, W)` that a layer gets, with a value in the padding."""
        x, = args
        if self.sizes and x.shape[2:] not in self.masks:
            mask = self.masks[x.shape[2:]] = x.new_ones((len(x), 1, *x.shape[2:]), dtype=torch.bool)
            for i, (rows, columns) in enumerate(self.cells(x)):
                mask[i, :, :rows, :columns] = False
        return x.masked_fill(self.masks[x.shape[2:]], value) if self.sizes else x

    def continue_images(self, layer: nn.Module, args: tuple[Tensor], x: Tensor) -> None:
        """Copies the last row and column of each image into the padding."""
        for i, (rows, columns) in enumerate(self.cells(x)):
            x[i, :, rows:] = x[i, :, rows - 1:rows]
            x[i, :, :, columns:] = x[i, :, :, columns - 1:columns]

    def run_each(self, layer: nn.Module, args: tuple[Tensor], outs: Tensor | list[Tensor]) -> None:
        """Computes again, from each image alone, what a layer computes from a whole map: means, or a grid's cells."""
        outs = [outs] if isinstance(outs, Tensor) else outs
        for i, (rows, columns) in enumerate(self.cells(args[0])):
            for out, part in zip(outs, layer.forward(args[0][i:i + 1, :, :rows, :columns]), strict=True):
                out[i, :, :part.shape[-2], :part.shape[-1]] = part

    def leave_out_anchors(self, head: nn.Module, args: object, outs: tuple[list[Tensor], ...]
                          ) -> tuple[list[Tensor], ...]:
        """Gives anchors in the padding a score of 0 and an empty box, which are removed."""
        limits = torch.finfo(outs[0][0].dtype)  # finite, so that losses in eval mode are
        pairs = zip(outs, (limits.min, limits.max), strict=True)
        return tuple([self.fill(head, (x,), value) for x in maps] for maps, value in pairs)
