"""Tests of all packages share these functions. This file imports neither `cpvt_mm` nor `lab`."""
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from openmmlab_tools.errors import UserError

ROOT = Path(__file__).parents[1]


def build_model(cfg: Config, device: str = 'cpu') -> nn.Module:
    """The model of a config with random weights; on the device 'meta', weights need no memory."""
    with DefaultScope.overwrite_default_scope(cfg.default_scope), torch.device(device):
        return MODELS.build(cfg.model)


def groups_by_name(model: nn.Module, wrapper: OptimWrapper) -> dict[str, dict[str, Any]]:
    """The settings of the optimizer for each parameter, by its name; each must be in one group."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    pairs = [(names[p], group) for group in wrapper.optimizer.param_groups for p in group['params']]
    actual = {name: {key: value for key, value in group.items() if key != 'params'} for name, group in pairs}
    assert len(actual) == len(pairs)
    return actual


def read_anywhere(path: Path) -> dict[str, Any]:
    """Reads a checkpoint as torch does by itself, without permission for any class."""
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        return torch.load(path, weights_only=True)
    finally:
        torch.serialization.add_safe_globals(allowed)


def refusal(call: Callable[..., object], *args: object, error: type[Exception] = UserError, **kwargs: object) -> str:
    """The message of the error that a call ends with; it must be one line."""
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert '\n' not in message
    return message


def toy_overrides(toy_shapes: Path, **more: object) -> dict[str, Any]:
    """Options for both toy configs: the small dataset, two images a batch, every iteration logged, no slow workers."""
    options = {'train_dataloader.batch_size': 2, 'default_hooks.logger.interval': 1, 'log_level': 'WARNING'}
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        options.update({f'{loader}.dataset.data_root': f'{toy_shapes}/', f'{loader}.num_workers': 0,
                        f'{loader}.persistent_workers': False})
    return {**options, **more}


class Trained(NamedTuple):
    """Files that training leaves: the config as it was written to the work dir, and the last checkpoint."""
    config: Path
    checkpoint: Path


# The two toy models after training, by the library.
Models = dict[str, Trained]


def train_toys(detector: Path, segmentor: Path, data: Path, make_folder: Callable[[str], Path]) -> Models:
    """Trains a toy detector ('mmdet') and a toy segmentor ('mmseg') for two iterations."""
    from openmmlab_tools.engine import load_config, train
    annotations = f'{data}/instances_validation.json'
    metrics = {'val_evaluator.ann_file': annotations, 'test_evaluator.ann_file': annotations}
    models = {}
    for scope, config, more in (('mmdet', detector, metrics), ('mmseg', segmentor, {})):
        folder = make_folder(f'trained_{scope}')
        options = toy_overrides(data, **{'train_cfg.max_iters': 2, 'train_cfg.val_interval': 100}, **more)
        train(load_config(config, options, str(folder)))
        models[scope] = Trained(folder / config.name, folder / 'iter_2.pth')
    return models


def with_forks() -> bool:
    """Whether the forks of OpenMMLab (onedl) are installed."""
    try:
        distribution('onedl-mmsegmentation')
    except PackageNotFoundError:
        return False
    return True
