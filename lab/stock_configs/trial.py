"""Runs a training step and a prediction with the model of a config."""
import copy
import warnings

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmengine.registry import DefaultScope
from mmengine.runner import set_random_seed
from torch import nn

from cpvt_mm.models.backbone import Backbone
from lab.from_config import build_model, build_plain_optim_wrapper
from lab.stock_configs.batches import SIDE, small_batch
from openmmlab_runs.nested import walk

MOST_CLASSES = 1300


def try_out(cfg: Config) -> None:
    """Runs a training step on two small images with the config's optimizer, if it has one, and predicts, on the CPU.

    Raises any error of the model, also if the loss or a weight of the backbone is not finite, or a stage or block does
    not learn.
    """
    cfg = _made_small(cfg)
    set_random_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        model = revert_sync_batchnorm(build_model(cfg))
        model.init_weights()
        for count in ('iter', 'epoch'):  # a runner does the same
            MessageHub.get_current_instance().update_info(count, 0)
        if cfg.get('optim_wrapper'):
            _train_step(model, cfg)
        model.eval()
        with torch.no_grad():
            predictions = model.test_step(small_batch(cfg, training=False))
    if not predictions:
        raise RuntimeError('The model predicts nothing, not even an empty result.')


def _train_step(model: BaseModel, cfg: Config) -> None:
    model.train()
    optim_wrapper = build_plain_optim_wrapper(model, cfg, weight_decay=0.)  # decay moves weights that learn nothing
    parts = _backbone_parts(model)
    before = {name: [p.detach().clone() for p in parameters] for name, parameters in parts.items()}
    losses = model.train_step(small_batch(cfg, training=True), optim_wrapper)
    if not torch.isfinite(losses['loss']):
        raise FloatingPointError(f'The loss is {losses["loss"]}.')
    if not parts:
        raise RuntimeError('Nothing of the backbone learns.')
    for name, parameters in parts.items():
        if all(torch.equal(p, was) for p, was in zip(parameters, before[name], strict=True)):
            raise RuntimeError(f'The step leaves {name} as it is.')
        if not all(torch.isfinite(p).all() for p in parameters):
            raise FloatingPointError(f'The step leaves weights in {name} that are not finite.')


def _backbone_parts(model: BaseModel) -> dict[str, list[nn.Parameter]]:
    """Returns the parameters that must learn, for each stage or block of the new backbone, or for the whole old one."""
    modules = dict(model.named_modules())
    parts = {f'{name}.{module.parts}.{i}': part for name, module in modules.items() if isinstance(module, Backbone)
             for i, part in enumerate(module.get_submodule(module.parts).children())}
    if not parts:
        parts = {name: module for name, module in modules.items() if name.endswith('backbone') and 'reid' not in name}
    learning = {name: [p for p in part.parameters() if p.requires_grad] for name, part in parts.items()}
    return {name: parameters for name, parameters in learning.items() if parameters}


def _made_small(cfg: Config) -> Config:
    """Copies the config, with small images, and at most as many classes as NMS of random scores can handle."""
    cfg = copy.deepcopy(cfg)
    for _, node in walk(cfg.model):
        if isinstance(node.get('num_classes'), int):
            node['num_classes'] = min(node['num_classes'], MOST_CLASSES)
        if 'batch_augments' in node:
            node['batch_augments'] = None
        if str(node.get('type')).rpartition('.')[2] == 'SegDataPreProcessor' and node.get('size'):
            node['size'] = (SIDE, SIDE)
    return cfg
