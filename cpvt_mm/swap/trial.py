"""Building a config's model, and a step of training and a prediction with it."""
import copy
import warnings

import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import MessageHub
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
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
    """Trains a step on two small images with the config's optimizer, if it has one, on the CPU, and predicts.

    Raises what the model raises, and:
        FloatingPointError: If the loss or a weight of the backbone is not finite, or the backbone does not learn.
    """
    cfg = _made_small(cfg)
    set_random_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        model = revert_sync_batchnorm(build(cfg))
        model.init_weights()
        MessageHub.get_current_instance().update_info('iter', 0)  # as a runner does
        if cfg.get('optim_wrapper'):
            _train_step(model, cfg)
        model.eval()
        with torch.no_grad():
            predictions = model.test_step(fake_batch(cfg, training=False))
    if not predictions:
        raise RuntimeError('The model predicts nothing, not even an empty result.')


def _train_step(model: BaseModel, cfg: Config) -> None:
    # Mixed precision needs a GPU, accumulation several iterations.
    wrapper = {key: value for key, value in cfg.optim_wrapper.items()
               if key not in ('type', 'loss_scale', 'dtype', 'accumulative_counts')}
    optim_wrapper = build_optim_wrapper(model.train(), ConfigDict(type='OptimWrapper', **wrapper))
    parameters = [p for name, p in model.named_parameters() if 'backbone.' in name and 'reid' not in name]
    before = [p.detach().clone() for p in parameters]
    losses = model.train_step(fake_batch(cfg, training=True), optim_wrapper)
    if not torch.isfinite(losses['loss']):
        raise FloatingPointError(f'The loss is {losses["loss"]}.')
    if all(torch.equal(p, was) for p, was in zip(parameters, before, strict=True)):
        raise FloatingPointError('The step leaves the backbone as it is.')
    if not all(torch.isfinite(p).all() for p in parameters):
        raise FloatingPointError('The step leaves weights in the backbone that are not finite.')


def _made_small(cfg: Config) -> Config:
    """The config with images that stay small, and without weights from elsewhere."""
    cfg = copy.deepcopy(cfg)
    for _, node in walk(cfg.model):
        if 'batch_augments' in node:
            node['batch_augments'] = None
        for key in ('init_cfg', 'pretrained'):
            if isinstance(node.get(key), str) or 'Pretrained' in str(node.get(key)):
                node[key] = None
        if str(node.get('type')).rpartition('.')[2] == 'SegDataPreProcessor' and node.get('size'):
            node['size'] = (SIDE, SIDE)
    return cfg
