"""The part of a config's model that is exported: a backbone, a segmentor or a detector."""
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn

from cpvt_mm.models.create import load_backbone
from cpvt_mm.models.layers import PatchEmbed
from openmmlab_tools.checkpoints.fitting import load_weights
from openmmlab_tools.checkpoints.loading import build_model
from openmmlab_tools.errors import UserError

from .detector import Detector, to_detector

SCOPES = {'segmentor': 'mmseg', 'detector': 'mmdet'}
LEAST = 1e-7  # threshold of a binary segmentor, whose logit is finite


class Segmentor(nn.Module):
    """Backbone, neck and decode head of mmseg's EncoderDecoder, with logits resized to the image.

    A binary head has one channel: mmseg applies a sigmoid and compares it with a threshold. The wrapper puts the logit
    of the threshold before it as a second channel. So the larger channel is the class, as for other segmentors.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        """Computes the logits of images: `(B, 3, H, W)` -> `(B, classes, H, W)`."""
        logits = self.model.encode_decode(image, [dict(img_shape=tuple(image.shape[2:]))])
        if logits.shape[1] > 1:
            return logits
        threshold = min(max(self.model.decode_head.threshold, LEAST), 1 - LEAST)
        return torch.cat([torch.full_like(logits, math.log(threshold / (1 - threshold))), logits], dim=1)


def load_part(cfg: Config, part: str, checkpoint: str | Path | None = None,
              to_detector: Callable[[Any], Detector] = to_detector) -> nn.Module:
    """Builds a part of a config's model, in eval mode.

    Args:
        cfg: A config from `openmmlab_tools.engine.load_config`.
        part: 'backbone' for a `CPVT` or `PyramidCPVT`, 'segmentor' for a `Segmentor`, or 'detector' for a `Detector`.
        checkpoint: Weights of the whole model; required for a detector. Defaults to None: random weights.
        to_detector: A function that wraps a detector of mmdet. Defaults to the wrapper for RetinaNet.

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
    model = build_model(cfg)
    if part == 'segmentor' and not hasattr(model, 'encode_decode'):
        raise UserError(f'the model of config {cfg.filename} is a {type(model).__name__}, but must be an '
                        'EncoderDecoder: export the backbone alone, with --part backbone.')
    wrapped = to_detector(model) if part == 'detector' else Segmentor(model)
    if checkpoint:
        load_weights(model, checkpoint)
    return wrapped.eval()


def in_channels(model: nn.Module) -> int:
    """Returns the number of image channels of a model with a backbone of this package."""
    return next(module.proj.in_channels for module in model.modules() if isinstance(module, PatchEmbed))
