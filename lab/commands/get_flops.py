"""Prints a markdown table of the parameters and FLOPs of configs, attention included."""
import argparse
from pathlib import Path
from typing import cast

import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from rich.progress import track
from torch import nn

from lab.arguments import positive
from lab.counting import count_flops
from openmmlab_tools.errors import exit_on_error
from openmmlab_tools.texts import markdown_table

SHAPES = {'mmdet': (800, 1216), 'mmseg': (512, 512), 'mmpretrain': (224, 224)}


def measure(model: nn.Module, *args: object, **kwargs: object) -> tuple[int, int]:
    """Returns the numbers of parameters of a model and of operations of `model(*args, **kwargs)` in eval mode."""
    model.eval()
    with torch.no_grad():
        flops = count_flops(lambda: model(*args, **kwargs))
    return sum(parameter.numel() for parameter in model.parameters()), flops


def measure_config(cfg: Config, shape: tuple[int, int]) -> list[tuple[int, int]]:
    """Measures the backbone of a config of mmdet, mmseg or mmpretrain, and its whole model, on one image of zeros, of
    `shape` (height, width).

    The weights are random, so the second stage of a two-stage detector gets random proposals.
    """
    from openmmlab_tools.checkpoints.loading import build
    model = build(cfg, cfg.model)
    backbone = cast(nn.Module, model.backbone)
    image = torch.zeros(1, getattr(backbone, 'in_channels', 3), *shape)
    sample = BaseDataElement(metainfo=dict(img_shape=shape, ori_shape=shape, pad_shape=shape, batch_input_shape=shape,
                                           scale_factor=(1., 1.)))
    return [measure(backbone, image), measure(model, image, [sample], mode='tensor')]


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('configs', nargs='+', help='config files')
    parser.add_argument('--shape', type=positive, nargs=2, metavar=('HEIGHT', 'WIDTH'),
                        help=f'image size in pixels (default: {SHAPES})')
    args = parser.parse_args()
    from openmmlab_tools.engine import load_config
    rows = []
    for path in track(args.configs, 'Counting'):
        cfg = load_config(path)
        height, width = args.shape or SHAPES[cfg.default_scope]
        parts = measure_config(cfg, (height, width))
        rows.append([Path(path).stem, f'{height} x {width}', *(f'{params / 1e6:.2f}' for params, _ in parts),
                     *(f'{flops / 1e9:.1f}' for _, flops in parts)])
    print(markdown_table(['config', 'image', 'backbone, M params', 'model, M params', 'backbone, GFLOPs',
                          'model, GFLOPs'], rows), end='')
