"""Builds the model and the optimizer of a config, for single steps without a runner."""
import copy
import warnings

from mmengine.config import Config, ConfigDict
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope

from cpvt_mm.swap.channels import walk


def build_model(cfg: Config) -> BaseModel:
    """Builds the model of a config, without any pretrained weights."""
    model_cfg = copy.deepcopy(cfg.model)
    for _, node in walk(model_cfg):
        for key in ('init_cfg', 'pretrained', 'teacher_ckpt'):
            if isinstance(node.get(key), str) or 'Pretrained' in str(node.get(key)):
                node[key] = None
    if cfg.get('data_preprocessor') and not model_cfg.get('data_preprocessor'):
        model_cfg['data_preprocessor'] = cfg.data_preprocessor
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return MODELS.build(model_cfg)


def build_plain_optim_wrapper(model: BaseModel, cfg: Config, **optimizer: float) -> OptimWrapper:
    """Builds the config's optimizer, without mixed precision and gradient accumulation.

    Args:
        model: The model to train.
        cfg: The config of the model.
        optimizer: Arguments of the optimizer that override the config.
    """
    wrapper = {key: value for key, value in cfg.optim_wrapper.items()
               if key not in ('type', 'loss_scale', 'dtype', 'accumulative_counts')}
    wrapper['optimizer'] = {**wrapper['optimizer'], **optimizer}
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        return build_optim_wrapper(model, ConfigDict(type='OptimWrapper', **wrapper))
