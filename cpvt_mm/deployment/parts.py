"""Builds the part of a config's model to export."""
from pathlib import Path
from typing import TYPE_CHECKING

from mmengine.config import Config
from torch import Tensor, nn

from cpvt_mm.errors import UserError
from cpvt_mm.loading import build, load_backbone
from cpvt_mm.models.layers import PatchEmbed
from cpvt_mm.weights.reading import load_weights

from .detector import to_detector

if TYPE_CHECKING:
    from mmseg.models import EncoderDecoder

PARTS = ('backbone', 'segmentor', 'detector')
SCOPES = {'segmentor': 'mmseg', 'detector': 'mmdet'}


class Segmentor(nn.Module):
    """Backbone, neck and decode head of mmseg's EncoderDecoder, with logits resized to the image."""

    def __init__(self, model: 'EncoderDecoder') -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        """Computes the logits of images: `(B, 3, H, W)` -> `(B, classes, H, W)`."""
        return self.model.encode_decode(image, [dict(img_shape=tuple(image.shape[2:]))])


def load_part(cfg: Config, part: str, checkpoint: str | Path | None = None) -> nn.Module:
    """Builds a part of a config's model, in eval mode.

    Args:
        cfg: See `cpvt_mm.engine.load_config`.
        part: 'backbone': a `CPVT` or `PyramidCPVT`; 'segmentor': a `Segmentor`; or 'detector': a `Detector`.
        checkpoint: Weights of the config's whole model; required for a detector, because random weights give all boxes
            similar scores. Defaults to None: random weights.

    Raises:
        UserError: If the config has no such part, a detector has no checkpoint, or the checkpoint does not fit.
    """
    if part == 'backbone':
        return load_backbone(cfg, checkpoint)
    if cfg.default_scope != SCOPES[part]:
        raise UserError(f'config {cfg.filename} is of {cfg.default_scope}, but {part}s are of {SCOPES[part]}: export '
                        'the backbone alone, with --part backbone.')
    if part == 'detector' and not checkpoint:
        raise UserError('a detector with random weights finds no boxes to compare: pass a --checkpoint.')
    model = build(cfg, cfg.model)
    wrapped = to_detector(model) if part == 'detector' else _to_segmentor(model, cfg)
    if checkpoint:
        load_weights(model, checkpoint)
    return wrapped.eval()


def _to_segmentor(model: nn.Module, cfg: Config) -> Segmentor:
    from mmseg.models import EncoderDecoder
    if not isinstance(model, EncoderDecoder):
        raise UserError(f'the model of config {cfg.filename} is a {type(model).__name__}, but must be an '
                        'EncoderDecoder: export the backbone alone, with --part backbone.')
    return Segmentor(model)


def in_channels(model: nn.Module) -> int:
    """Returns the number of image channels of a model with a backbone of this package."""
    return next(module.proj.in_channels for module in model.modules() if isinstance(module, PatchEmbed))
