"""Prints a markdown table of the parameters and FLOPs of configs, attention included."""
import argparse
from pathlib import Path
from typing import cast

import torch
from mmengine.config import Config
from rich.progress import track
from torch import Tensor, nn

from lab.arguments import check_least
from lab.counting import Complexity, measure
from openmmlab_runs.errors import exit_on_error
from openmmlab_runs.texts import markdown_table

SHAPES = {'mmdet': (800, 1216), 'mmseg': (512, 512), 'mmpretrain': (224, 224)}


def measure_config(cfg: Config, shape: tuple[int, int]) -> tuple[Complexity, Complexity]:
    """Measures the model of a config of mmdet, mmseg or mmpretrain on one image of zeros, of `shape` (height, width).

    The weights are random, so the second stage of a two-stage detector gets random proposals.

    Returns:
        The complexity of the backbone, and that of the whole model, both in eval mode.
    """
    from openmmlab_runs.checkpoints.loading import build
    model = build(cfg, cfg.model)
    backbone = cast(nn.Module, model.backbone)
    image = torch.zeros(1, getattr(backbone, 'in_channels', 3), *shape)
    return measure(backbone, image), measure(model, image, [data_sample(cfg.default_scope, image)], mode='tensor')


def data_sample(library: str, image: Tensor) -> object:
    """Makes the data sample that `library` needs for a batch of one image, `(1, 3, H, W)`."""
    shape = tuple(image.shape[-2:])
    meta = dict(img_shape=shape, ori_shape=shape, pad_shape=shape, batch_input_shape=shape, scale_factor=(1., 1.))
    if library == 'mmdet':
        from mmdet.structures import DetDataSample as DataSample
    elif library == 'mmpretrain':
        from mmpretrain.structures import DataSample
    else:
        from mmseg.structures import SegDataSample as DataSample
    return DataSample(metainfo=meta)


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('configs', nargs='+', help='config files')
    parser.add_argument('--shape', type=int, nargs=2, metavar=('HEIGHT', 'WIDTH'),
                        help=f'image size in pixels (default: {SHAPES})')
    args = parser.parse_args()
    from openmmlab_runs.engine import load_config
    if args.shape:
        check_least(args, 1, 'shape')
    rows = []
    for path in track(args.configs, 'Counting'):
        cfg = load_config(path)
        height, width = args.shape or SHAPES[cfg.default_scope]
        parts = measure_config(cfg, (height, width))
        rows.append([Path(path).stem, f'{height} x {width}', *(f'{part.params / 1e6:.2f}' for part in parts),
                     *(f'{part.flops / 1e9:.1f}' for part in parts)])
    print(markdown_table(['config', 'image', 'backbone, M params', 'model, M params', 'backbone, GFLOPs',
                          'model, GFLOPs'], rows), end='')
