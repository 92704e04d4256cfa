"""Counts the parameters and floating-point operations of the models of configs."""
from typing import cast

import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from torch import nn

from lab.counting import count_flops
from openmmlab_tools.checkpoints.loading import build


def measure(model: nn.Module, *args: object, **kwargs: object) -> tuple[int, int]:
    """Returns the number of a model's parameters, and the floating-point operations of `model(*args, **kwargs)` in eval
    mode.
    """
    model.eval()
    with torch.no_grad():
        flops = count_flops(lambda: model(*args, **kwargs))
    return sum(parameter.numel() for parameter in model.parameters()), flops


def measure_config(cfg: Config, shape: tuple[int, int]) -> list[tuple[int, int]]:
    """Measures the backbone and the whole model of a config on one image of zeros. `shape` is (height, width).

    It supports mmdet, mmseg and mmpretrain. The weights are random, so two-stage detectors classify random proposals.
    """
    model = build(cfg, cfg.model)
    backbone = cast(nn.Module, model.backbone)
    image = torch.zeros(1, getattr(backbone, 'in_channels', 3), *shape)
    sample = BaseDataElement(metainfo=dict(img_shape=shape, ori_shape=shape, pad_shape=shape, batch_input_shape=shape,
                                           scale_factor=(1., 1.)))
    return [measure(backbone, image), measure(model, image, [sample], mode='tensor')]
