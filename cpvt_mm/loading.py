"""Loads the backbones of configs with their weights, and normalizes images as configs do."""
import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS
from torch import Tensor, nn

from .errors import UserError, first_line, show
from .models import CPVT, PyramidCPVT
from .models.pretrained import check_filled, fit_encodings
from .registry import in_scope
from .weights.fitting import COUNTER, counted, inner, load_weights
from .weights.reading import read_weights

MISFIT = re.compile(r'(?:size mismatch for|the parameter named "?)\s*([\w.]+)')  # in torch's errors of a load


def backbone_config(cfg: Config) -> ConfigDict:
    """Returns `model.backbone` of a config; raises a UserError if there is none."""
    if 'backbone' not in cfg.get('model', {}):
        raise UserError(f'config {cfg.filename} has no model.backbone: use a config with a CPVT or PyramidCPVT.')
    return cfg.model.backbone


def build(cfg: Config, part: Mapping[str, Any]) -> nn.Module:
    """Builds a part of a config under the config's `default_scope`.

    Raises:
        UserError: If it cannot be built.
    """
    try:
        with in_scope(cfg.get('default_scope')):
            return MODELS.build(copy.deepcopy(part))  # some models change their config
    except Exception as error:  # a part can raise any error, another one with python -O, which leaves out asserts
        raise UserError(f'the {part.get("type")} of config {cfg.filename} cannot be built: {first_line(error)}'
                        ) from error


def load_backbone(cfg: Config, checkpoint: str | Path | None = None) -> CPVT | PyramidCPVT:
    """Builds the backbone of a config, in eval mode.

    Args:
        cfg: Config with `model.backbone` and, if its type needs it, `default_scope`.
        checkpoint: Weights of the whole `model`. Defaults to None: random weights.

    Raises:
        UserError: If the config has no such backbone, or the checkpoint does not fit.
    """
    config = backbone_config(cfg)
    model = build(cfg, cfg.model) if checkpoint else None
    backbone = model.backbone if model else build(cfg, config)
    if not isinstance(backbone, (CPVT, PyramidCPVT)):
        raise UserError(f'model.backbone of config {cfg.filename} is a {type(backbone).__name__}, but must be a CPVT '
                        'or a PyramidCPVT.')
    if model and checkpoint:
        load_weights(model, checkpoint)
    return backbone.eval()


def check_fills_backbones(model: nn.Module, checkpoint: str | Path) -> None:
    """Checks that a checkpoint of a whole model, such as `load_from`, has all weights of this package's backbones.

    mmengine loads the weights that fit, and only warns about others. That suits heads with another number of classes,
    but it would leave a part of a backbone random.

    Raises:
        UserError: If a tensor of a backbone is missing or has another shape, or the file cannot be read.
    """
    backbones = {name: module for name, module in model.named_modules() if isinstance(module, (CPVT, PyramidCPVT))}
    weights = read_weights(checkpoint).tensors if backbones else {}
    for prefix, backbone in backbones.items():
        start, wanted = f'{prefix}.', backbone.state_dict()
        found = {name.removeprefix(start): tensor for name, tensor in weights.items() if name.startswith(start)}
        fitting = {name: found[name] for name in wanted if name in found}
        if not fitting:
            raise UserError(f'load_from is {checkpoint}, which has no weights below {prefix!r}: use a checkpoint of '
                            f'such a model, or load weights of a backbone alone with model.{prefix}.init_cfg='
                            "dict(type='Pretrained', checkpoint=...).")
        fit_encodings(backbone, fitting)
        missing = [name for name in wanted if name not in fitting]
        check_filled(fitting, wanted, missing, f'load_from ({checkpoint})', backbone)


@contextmanager
def unloaded_shown(model: nn.Module, checkpoint: str | Path) -> Iterator[None]:
    """Shows what of a checkpoint does not load, when a runner loads it as `load_from` in the `with` block.

    Raises:
        UserError: When it is loaded, if no tensor of the model is.
    """
    found: list[list[str]] = []  # torch fills them while it loads: missing, left over, and errors

    def begin(module: nn.Module, weights: Any, prefix: str, metadata: Any, strict: bool, *lists: list[str]) -> None:
        found[:] = lists

    def end(module: nn.Module, incompatible: Any) -> None:
        missing, left_over, errors = found
        missing = [name for name in missing if not name.endswith(COUNTER)]
        other = [match[1] for match in map(MISFIT.search, errors) if match]
        total = sum(not name.endswith(COUNTER) for name in module.state_dict())
        what = f'load_from is {checkpoint}, '
        loaded = total - len(missing) - len(other)
        if loaded <= 0:
            raise UserError(f'{what}which has none of the {total} tensors of the model: use a checkpoint of such a '
                            'model.')
        if misfits := counted({'missing': missing, 'left over': left_over, 'of another shape': other}):
            show(f'{what}which fills {loaded} of the {total} tensors of the model; not loaded are {misfits}, as is '
                 'normal for heads of other classes.')

    part = inner(model)
    hooks = part.register_load_state_dict_pre_hook(begin), part.register_load_state_dict_post_hook(end)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def normalization(cfg: Config) -> tuple[list[float], list[float], bool]:
    """Returns `mean` and `std` of a config's data preprocessor, and whether it converts BGR to RGB.

    If the preprocessor does not set them, `mean` is three zeros and `std` three ones.
    """
    preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    # mmpretrain calls it to_rgb.
    is_rgb = bool(preprocessor.get('bgr_to_rgb') or preprocessor.get('to_rgb'))
    return list(preprocessor.get('mean') or [0., 0., 0.]), list(preprocessor.get('std') or [1., 1., 1.]), is_rgb


def to_input(image: np.ndarray, cfg: Config) -> Tensor:
    """Normalizes an image as a config's data preprocessor: `(H, W, 3)` RGB -> `(1, 3, H, W)`, float32, not padded.

    Raises:
        UserError: If the backbone does not take three channels.
    """
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
