"""Building a config's model, and a step of training and a prediction with it."""
import copy
import warnings

import torch
from mmengine.config import Config
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import set_random_seed

from .channels import walk
from .fake_data import SIDE, fake_batch


def build(cfg: Config) -> BaseModel:
    """The model of a config, without its weights."""
    model_cfg = copy.deepcopy(cfg.model)
    if cfg.get('data_preprocessor') and not model_cfg.get('data_preprocessor'):
        model_cfg['data_preprocessor'] = cfg.data_preprocessor
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return MODELS.build(model_cfg)


def try_out(cfg: Config) -> None:
    """Trains a step on two small images with the config's optimizer, on the CPU, and predicts; raises what it raises.

    Raises:
        FloatingPointError: If the loss or a weight of the backbone is not finite, or the backbone does not learn.
    """
    cfg = _without_padding(cfg)
    set_random_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        model = revert_sync_batchnorm(build(cfg)).train()
        wrapper = cfg.optim_wrapper.copy()
        wrapper.type = 'OptimWrapper'  # mixed precision needs a GPU
        wrapper.pop('loss_scale', None)
        wrapper.pop('accumulative_counts', None)  # of several iterations
        wrapper.pop('dtype', None)
        _train_step(model, build_optim_wrapper(model, wrapper), cfg)
        model.eval()
        predictions = model.test_step(fake_batch(cfg, training=False))
    if not predictions:
        raise RuntimeError('The model predicts nothing, not even an empty result.')


def _train_step(model: BaseModel, optim_wrapper: OptimWrapper, cfg: Config) -> None:
    parameters = [p for name, p in model.named_parameters() if 'backbone.' in name and 'reid' not in name]
    before = [p.detach().clone() for p in parameters]
    losses = model.train_step(fake_batch(cfg, training=True), optim_wrapper)
    if not torch.isfinite(losses['loss']):
        raise FloatingPointError(f'The loss is {losses["loss"]}.')
    if all(torch.equal(p, was) for p, was in zip(parameters, before, strict=True)):
        raise FloatingPointError('The step leaves the backbone as it is.')
    if not all(torch.isfinite(p).all() for p in parameters):
        raise FloatingPointError('The step leaves weights in the backbone that are not finite.')


def _without_padding(cfg: Config) -> Config:
    """The config with images that stay small."""
    cfg = copy.deepcopy(cfg)
    for _, node in walk(cfg.model):
        if 'batch_augments' in node:
            node['batch_augments'] = None
        if str(node.get('type')).rpartition('.')[2] == 'SegDataPreProcessor' and node.get('size'):
            node['size'] = (SIDE, SIDE)
    return cfg
