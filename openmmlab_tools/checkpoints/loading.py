"""Builds models of configs and parts of them, whose parts must fit, and normalizes images as configs do."""
import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.dist import is_distributed
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import Tensor, nn

from openmmlab_tools.class_weights import mend_class_weights
from openmmlab_tools.config_walk import walk
from openmmlab_tools.errors import UserError, as_sentence
from openmmlab_tools.registry import in_scope

T = TypeVar('T', bound=Mapping[str, Any])


def backbone_config(cfg: Config) -> ConfigDict:
    if 'backbone' not in cfg.get('model', {}):
        raise UserError(f'config {cfg.filename} has no model.backbone: use a config that sets one.')
    return cfg.model.backbone


def build(cfg: Config, part: Mapping[str, Any]) -> nn.Module:
    """Builds a part of a config under the config's `default_scope`; raises a UserError if it cannot be built."""
    return _build(part, cfg.get('default_scope'), cfg.filename)


def _build(part: Mapping[str, Any], scope: str | None, file: str) -> nn.Module:
    fault = f'the {part.get("type", "model")} of config {file} cannot be built'
    with in_scope(scope), as_sentence(fault, 'correct it', OSError, ImportError):
        return MODELS.build(buildable(part))


def buildable(config: T) -> T:
    """Returns a copy of the config of a model, because some models change theirs.

    In it, mmcv's MMSyncBN, which only processes that are connected can build, is torch's SyncBN in other processes.
    mmengine reverts it to BatchNorm there.
    """
    copied = copy.deepcopy(config)
    for _, part in walk(copied) if not is_distributed() else ():
        if str(part.get('type')).rpartition('.')[2] == 'MMSyncBN':
            part['type'] = 'SyncBN'
            for name in ('group', 'stats_mode'):
                part.pop(name, None)
    return copied


def model_of(cfg: Config) -> dict[str, Any]:
    """Returns the config of a model as mmengine's runner builds it: with the data preprocessor."""
    preprocessor = cfg.get('data_preprocessor')
    return {**(dict(data_preprocessor=preprocessor) if preprocessor else {}), **(cfg.get('model') or {})}


def build_model(cfg: Config) -> nn.Module:
    """Builds the model of a config as mmengine's runner does; a UserError if it cannot, or its parts do not fit."""
    return build_checked(model_of(cfg), cfg.get('default_scope'), cfg.filename)


def build_checked(config: Mapping[str, Any], scope: str | None, file: str) -> nn.Module:
    """Builds a model as `build_model` does, from what `model_of` returns for the config of a file."""
    model = revert_sync_batchnorm(_build(config, scope, file))
    mend_class_weights(model)
    check_model(model)
    return model


def check_model(model: nn.Module) -> None:
    """Raises a UserError unless images, backbone, and neck or heads fit together, also in each model inside a model.

    This is of backbones that tell the channels of their images and maps, `in_channels` and a tuple `out_channels`.
    """
    for part in model.modules():
        backbone = getattr(part, 'backbone', None)
        channels, maps = getattr(backbone, 'in_channels', None), getattr(backbone, 'out_channels', None)
        if isinstance(channels, int) and isinstance(maps, tuple):
            mean = getattr(getattr(part, 'data_preprocessor', None), 'mean', None)
            # torch would silently broadcast a grey image.
            if isinstance(mean, Tensor) and len(mean) not in (1, channels):
                raise UserError(f'data_preprocessor.mean has {len(mean)} values, but backbone.in_channels is '
                                f'{channels}: set in_channels=3, or, to use all channels, load images with '
                                'openmmlab_tools.LoadBandsFromFile, normalize them with Normalize at the end of the '
                                'pipelines, and set mean=None, std=None and bgr_to_rgb=False of data_preprocessor.')
            _check_readers(part, [*maps])


def _check_readers(part: nn.Module, given: list[int]) -> None:
    """Compares the channels of the maps with the channels that the neck or mmseg's heads accept, in order or reversed.
    """
    neck = getattr(part, 'neck', None)
    for name in ('neck',) if neck is not None else ('decode_head', 'auxiliary_head'):
        reader = getattr(part, name, None)
        taken, index = getattr(reader, 'in_channels', None), getattr(reader, 'in_index', None)
        if not isinstance(taken, list | tuple):  # a number does not tell how many maps there are
            continue
        maps = [given[i] for i in index if i < len(given)] if isinstance(index, list | tuple) else given
        if list(taken) not in (maps, maps[::-1]):
            raise UserError(f'model.{name}.in_channels is {list(taken)}, but the backbone returns {len(given)} maps of '
                            f'{given} channels: make them equal, by model.{name} or by model.backbone.')


def bands_loader(pipeline: Any) -> dict[str, Any] | None:
    """Returns the config of the first LoadBandsFromFile in a pipeline or in a part that contains pipelines; None if
    there is none.
    """
    return next((part for _, part in walk(pipeline) if str(part.get('type')).endswith('LoadBandsFromFile')), None)


class Normalization(NamedTuple):
    """Images that a model expects: `(pixels - mean) / std` for each channel, in an order."""
    mean: list[float]
    std: list[float]
    channels: str  # their order: 'RGB', 'BGR', or 'file' for `LoadBandsFromFile`


def normalization(cfg: Config) -> Normalization:
    """Returns the normalization of the data preprocessor, or of `Normalize` in a pipeline with `LoadBandsFromFile`.

    The defaults are zeros and ones.
    """
    if loader := bands_loader(cfg.get('test_dataloader')):
        step = next((part for _, part in walk(cfg.test_dataloader) if part.get('type') == 'Normalize'), {})
        count = loader['channels']
        return Normalization([*(step.get('mean') or [0.] * count)], [*(step.get('std') or [1.] * count)], 'file')
    preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    # mmpretrain calls it to_rgb.
    channels = 'RGB' if preprocessor.get('bgr_to_rgb') or preprocessor.get('to_rgb') else 'BGR'
    return Normalization([*(preprocessor.get('mean') or [0.] * 3)], [*(preprocessor.get('std') or [1.] * 3)], channels)


def to_input(image: np.ndarray, cfg: Config) -> Tensor:
    """Normalizes an image as a config's data preprocessor: `(H, W, 3)` RGB -> `(1, 3, H, W)`, float32, not padded."""
    check_takes_rgb(cfg.model.get('backbone', {}).get('in_channels', 3))
    mean, std, channels = normalization(cfg)
    ordered = np.asarray(image[..., ::-1] if channels == 'BGR' else image, np.float32)
    normalized = (ordered - np.array(mean, np.float32)) / np.array(std, np.float32)
    return torch.from_numpy(normalized).permute(2, 0, 1)[None].contiguous()


def check_takes_rgb(in_channels: int) -> None:
    """Raises a UserError if a backbone takes another number of channels than three."""
    if in_channels != 3:
        raise UserError(f'in_channels of the backbone is {in_channels}, but this needs a backbone for RGB images: use '
                        'another config.')
