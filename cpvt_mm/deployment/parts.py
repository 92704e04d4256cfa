"""What of a config's model is exported, and what it expects."""
import json
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn

from cpvt_mm.analysis.inputs import load_backbone, normalization
from cpvt_mm.checkpoints.reading import load_weights
from cpvt_mm.errors import UserError, first_line
from cpvt_mm.models.layers import PatchEmbed
from cpvt_mm.version import __version__

PARTS = ('backbone', 'segmentor')


class Segmentor(nn.Module):
    """The backbone, neck and decode head of an EncoderDecoder of mmseg, and its enlarging of logits to the image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        """`(B, 3, H, W)` -> logits, `(B, classes, H, W)`."""
        return self.model.encode_decode(image, [dict(img_shape=tuple(image.shape[2:]))])


def load_part(cfg: Config, part: str, checkpoint: str | Path | None = None) -> nn.Module:
    """Builds a part of a config's model, in eval mode.

    Args:
        cfg: As of `cpvt_mm.engine.load_config`.
        part: 'backbone': a `CPVT` or `PyramidCPVT`; or 'segmentor': a `Segmentor`.
        checkpoint: Weights of the config's whole model. Defaults to None: random ones.

    Raises:
        UserError: If the config has no such part, or the checkpoint does not fit.
    """
    if part == 'backbone':
        return load_backbone(cfg, checkpoint)
    if cfg.default_scope != 'mmseg':
        raise UserError(f'config {cfg.filename} is of {cfg.default_scope}, but segmentors are of mmseg: export the '
                        'backbone alone, with --part backbone.')
    from mmseg.models import EncoderDecoder
    try:
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            model = MODELS.build(cfg.model)
    except (AssertionError, ValueError, TypeError, KeyError) as error:  # heads assert
        raise UserError(f'the model cannot be built: {first_line(error)}') from error
    if not isinstance(model, EncoderDecoder):
        raise UserError(f'the model of config {cfg.filename} is a {type(model).__name__}, but must be an '
                        'EncoderDecoder: export the backbone alone, with --part backbone.')
    if checkpoint:
        load_weights(model, checkpoint)
    return Segmentor(model).eval()


def in_channels(model: nn.Module) -> int:
    """Channels of the images that a model with one of our backbones takes."""
    return next(module.proj.in_channels for module in model.modules() if isinstance(module, PatchEmbed))


def describe(cfg: Config) -> dict[str, str]:
    """What goes into an exported file beside the model: where it is from, and how images are prepared for it.

    `(pixels - mean) / std` per channel, pixels from 0 to 255; `mean` and `std` are JSON lists in the order of
    `channels`, 'RGB' or 'BGR'.
    """
    mean, std, is_rgb = normalization(cfg)
    return dict(
        config=Path(cfg.filename).stem,
        version=f'cpvt_mm {__version__}',
        layout='float32, (batch, channel, height, width)',
        channels='RGB' if is_rgb else 'BGR',
        mean=json.dumps(mean),
        std=json.dumps(std))
