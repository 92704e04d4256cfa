"""Builds parts of models from configs, and normalizes images as configs do."""
import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS
from torch import Tensor, nn

from .config_walk import walk
from .errors import UserError, first_line
from .registry import in_scope


def backbone_config(cfg: Config) -> ConfigDict:
    if 'backbone' not in cfg.get('model', {}):
        raise UserError(f'config {cfg.filename} has no model.backbone: use a config that sets one.')
    return cfg.model.backbone


def build(cfg: Config, part: Mapping[str, Any]) -> nn.Module:
    """Builds a part of a config under the config's `default_scope`; raises a UserError if it cannot be built."""
    try:
        with in_scope(cfg.get('default_scope')):
            return MODELS.build(copy.deepcopy(part))  # some models change their config
    except Exception as error:  # a part can raise any error, another one with python -O, which leaves out asserts
        raise UserError(f'the {part.get("type")} of config {cfg.filename} cannot be built: {first_line(error)}'
                        ) from error


def bands_loader(pipeline: Any) -> dict[str, Any] | None:
    """Returns the part of a config of a pipeline, or of what has one, that is a LoadBandsFromFile, or None."""
    return next((part for _, part in walk(pipeline) if str(part.get('type')).endswith('LoadBandsFromFile')), None)


def normalization(cfg: Config) -> tuple[list[float], list[float], bool]:
    """Returns mean and standard deviation (zeros and ones by default), and whether images are RGB, not BGR.

    They are those of the data preprocessor, or those of `Normalize` in the pipeline after `LoadBandsFromFile`.
    """
    if loader := bands_loader(cfg.get('test_dataloader')):
        step = next((part for _, part in walk(cfg.test_dataloader) if part.get('type') == 'Normalize'), {})
        count = loader['channels']
        return list(step.get('mean') or [0.] * count), list(step.get('std') or [1.] * count), True
    preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    # mmpretrain calls it to_rgb.
    is_rgb = bool(preprocessor.get('bgr_to_rgb') or preprocessor.get('to_rgb'))
    return list(preprocessor.get('mean') or [0., 0., 0.]), list(preprocessor.get('std') or [1., 1., 1.]), is_rgb


def to_input(image: np.ndarray, cfg: Config) -> Tensor:
    """Normalizes an image as a config's data preprocessor: `(H, W, 3)` RGB -> `(1, 3, H, W)`, float32, not padded."""
    check_takes_rgb(cfg.model.get('backbone', {}).get('in_channels', 3))
    mean, std, is_rgb = normalization(cfg)
    channels = np.asarray(image if is_rgb else image[..., ::-1], np.float32)
    normalized = (channels - np.array(mean, np.float32)) / np.array(std, np.float32)
    return torch.from_numpy(normalized).permute(2, 0, 1)[None].contiguous()


def check_takes_rgb(in_channels: int) -> None:
    """Raises a UserError if a backbone takes another number of channels than three."""
    if in_channels != 3:
        raise UserError(f'in_channels of the backbone is {in_channels}, but this needs a backbone for RGB images: use '
                        'another config.')
