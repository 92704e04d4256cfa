"""Builds the part of a config's model to export, and describes the image normalization that it expects."""
import json
from pathlib import Path
from typing import TYPE_CHECKING

from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import Tensor, nn

from cpvt_mm.data.datasets import build_unread
from cpvt_mm.errors import UserError
from cpvt_mm.loading import build, load_backbone, normalization
from cpvt_mm.models.layers import PatchEmbed
from cpvt_mm.version import __version__
from cpvt_mm.weights.reading import load_weights, read_checkpoint

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


def describe(cfg: Config) -> dict[str, str]:
    """Describes the origin of an exported model and the normalization of its images.

    The input is `(pixels - mean) / std` per channel, with pixels from 0 to 255. `mean` and `std` are JSON lists in the
    order of `channels`, 'RGB' or 'BGR'.
    """
    mean, std, is_rgb = normalization(cfg)
    return dict(
        config=Path(cfg.filename).stem,
        version=f'cpvt_mm {__version__}',
        layout='float32, (batch, channel, height, width)',
        channels='RGB' if is_rgb else 'BGR',
        mean=json.dumps(mean),
        std=json.dumps(std))


def describe_classes(cfg: Config, checkpoint: str | Path | None = None) -> dict[str, str]:
    """Describes the channels of a segmentor's logits, or the labels of a detector.

    `classes` and `palette` are JSON lists of names and RGB values. They come from the checkpoint, if training wrote
    them, or else from the `metainfo` of the config's test dataset, without reading its files. Unknown entries are
    omitted.
    """
    meta = (read_checkpoint(checkpoint).get('meta') or {}).get('dataset_meta') if checkpoint else None
    if not meta and cfg.get('test_dataloader'):
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            meta = build_unread(cfg.test_dataloader.dataset).metainfo
    return {key: json.dumps(meta[key]) for key in ('classes', 'palette') if meta and meta.get(key)}
