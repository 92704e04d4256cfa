"""Measures how much the features of an image change if it is in a padded batch with a larger image.

It works for backbones of any config, with random weights; for backbones of this package also with padding='exact'. The
images are smooth noise. Writes a table as .md and .csv, and a figure with the maps of one output.
"""
import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from rich.progress import track
from torch import Tensor, nn

from cpvt_mm.models.backbone import Backbone
from cpvt_mm.models.several_sizes import PAD_SIZE_DIVISOR
from cpvt_mm.tokens.grid import Size
from cpvt_mm.tokens.sizes import pad_or_crop, round_up
from lab.arguments import parse_sides
from lab.features import ENCODINGS, check_gives_maps, draw_weights, error_figure, smooth_noise
from lab.results import Row, write_report
from lab.running import interleave
from openmmlab_tools.checkpoints.loading import backbone_config, build
from openmmlab_tools.config_files import read_config
from openmmlab_tools.errors import UserError, exit_on_error
from openmmlab_tools.texts import markdown_table

CONFIGS = Path(__file__).parents[2] / 'configs'
STOCK = ['mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py', 'mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
         'mmdet::pvt/retinanet_pvt-s_fpn_1x_coco.py', 'mmdet::pvt/retinanet_pvtv2-b2_fpn_1x_coco.py',
         'mmseg::twins/twins_pcpvt-s_fpn_fpnhead_8xb4-80k_ade20k-512x512.py']
OURS = [CONFIGS / 'pyramid_cpvt/mask-rcnn_pyramid-cpvt-s_fpn_1x_coco.py',
        CONFIGS / 'cpvt/mask-rcnn_cpvt-s_sfp_1x_coco.py']


@dataclass(frozen=True)
class Difference:
    """How much a map differs: the RMS relative to the map's variation, this RMS for each cell `(h, w)`, and the
    maximum.
    """
    error: float
    max_abs: float
    cells: Tensor


def features(model: nn.Module, batch: Tensor, sizes: list[Size]) -> Sequence[Tensor]:
    """Runs a backbone; passes the image sizes to it if it has the option `padding`."""
    return model(batch, sizes) if isinstance(model, Backbone) and model.padding else model(batch)


def train_step(model: nn.Module, batch: Tensor, sizes: list[Size]) -> None:
    torch.stack([output.square().mean() for output in features(model, batch, sizes)]).sum().backward()


@torch.no_grad()
def measure(model: nn.Module, image: Tensor, neighbour: Tensor) -> list[Difference]:
    """Compares, for each map, the features of an image alone with those in a batch with a larger image, `(1, 3, H, W)`
    each.

    Alone, the image is zero-padded to multiples of 32, as in mmdet's data preprocessor.
    """
    sizes: list[Size] = [(x.shape[2], x.shape[3]) for x in (image, neighbour)]
    alone = features(model, pad_or_crop(image, *(round_up(side, PAD_SIZE_DIVISOR) for side in sizes[0])), sizes[:1])
    whole = [round_up(side, PAD_SIZE_DIVISOR) for side in sizes[1]]
    together = features(model, torch.cat([pad_or_crop(x, *whole) for x in (image, neighbour)]), sizes)
    return [_difference(batch[0], expected[0]) for batch, expected in zip(together, alone, strict=True)]


def _difference(features: Tensor, expected: Tensor) -> Difference:
    """Compares `(C, H, W)` with `(C, h, w)` in the cells that both maps contain."""
    _, rows, columns = expected.shape
    difference = features[:, :rows, :columns] - expected
    squares = difference.square().mean(dim=0) / expected.var(dim=(1, 2), correction=0).mean()
    return Difference(squares.mean().sqrt().item(), difference.abs().max().item(), squares.sqrt())


def build_backbone(cfg: Config, **changes: Any) -> nn.Module:
    """Builds the backbone of any config, with changed arguments and `draw_weights`, in eval mode."""
    config = {**backbone_config(cfg), 'init_cfg': None, **changes}
    if 'pretrained' in config:
        config['pretrained'] = None
    torch.manual_seed(0)  # some backbones draw random values that are not parameters
    backbone = build(cfg, config)
    check_gives_maps(backbone)
    draw_weights(backbone, seed=0)
    backbone.eval()  # `eval` of some backbones does not return self
    return backbone


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('configs', nargs='*', default=[*STOCK, *map(str, OURS)],
                        help='files, or names such as mmdet::... (default: five of mmdet and mmseg, and two of this '
                        'package)')
    parser.add_argument('--image', type=parse_sides, default=(480, 640), metavar='HxW',
                        help='size of the compared image in pixels (default: 480x640)')
    parser.add_argument('--neighbour', type=parse_sides, default=(800, 1216), metavar='HxW',
                        help='size of the other image of the batch in pixels (default: 800x1216)')
    parser.add_argument('--encodings', action='store_true',
                        help='compare several position encodings in the backbones of this package')
    parser.add_argument('--rounds', type=int, default=0,
                        help='number of rounds that time forward passes and training steps (default: 0)')
    parser.add_argument('--output', type=int, default=-2, help="which of the backbone's outputs to draw (default: -2)")
    parser.add_argument('--out', type=Path, default=Path('work_dirs/padding_difference.png'), help='file of the figure')
    return parser.parse_args()


def build_all(args: argparse.Namespace) -> dict[str, nn.Module]:
    models = {}
    for name in args.configs:
        cfg = read_config(name)
        model = build_backbone(cfg)
        if not isinstance(model, Backbone):
            models[type(model).__name__] = model
            continue
        encodings = ENCODINGS if args.encodings else {'': cfg.model.backbone.get('position_encoding', dict(type='PEG'))}
        for label, encoding in encodings.items():
            for padding in (None, 'exact'):
                parts = [type(model).__name__, label, f'padding={padding!r}' if padding else '']
                models[', '.join(filter(None, parts))] = build_backbone(
                    cfg, position_encoding=encoding, padding=padding)
    return models


def time_all(models: dict[str, nn.Module], images: list[Tensor], sizes: list[Size], rounds: int) -> dict[str, dict]:
    """Returns the seconds of a forward pass and of a training step with the batch: the minimum of all rounds."""
    batch = torch.cat([pad_or_crop(image, *sizes[-1]) for image in images])
    seconds: dict[str, dict[str, float]] = {name: {} for name in models}
    for action, call, training in (('forward', features, False), ('step', train_step, True)):
        for model in models.values():
            model.train(training)
        calls = {name: partial(call, model, batch, sizes) for name, model in models.items()}
        with torch.set_grad_enabled(training):
            for name, taken in interleave(calls, rounds, warmup=1).items():
                seconds[name][f'{action}_s'] = min(taken)
    return seconds


@exit_on_error
def main() -> None:
    args = parse_args()
    if any(side > limit for side, limit in zip(args.image, args.neighbour, strict=True)):
        raise UserError(f'--image {args.image} is larger than --neighbour {args.neighbour}: choose a smaller --image.')
    if max(args.image) <= PAD_SIZE_DIVISOR:
        raise UserError(f'--image {args.image} gives maps of one cell, which do not vary: choose a side above '
                        f'{PAD_SIZE_DIVISOR}.')
    models = build_all(args)
    sizes = [args.image, args.neighbour]
    images = [smooth_noise(max(size), seed)[:, :, :size[0], :size[1]].contiguous() for seed, size in enumerate(sizes)]
    differences = {name: measure(model, *images) for name, model in track(models.items(), 'Measuring')}
    num_outputs = max(map(len, differences.values()))
    if args.output not in range(-num_outputs, num_outputs):
        raise UserError(f'--output {args.output} does not exist: the backbones have at most {num_outputs} outputs.')
    seconds = time_all(models, images, sizes, args.rounds) if args.rounds > 0 else {}
    rows = [dict(backbone=name, **{f'error_{i}': difference.error for i, difference in enumerate(of_model)},
                 max_abs=max(difference.max_abs for difference in of_model), **seconds.get(name, {}))
            for name, of_model in differences.items()]
    height, width = args.image
    batch = f'a {height} x {width} image, if an {args.neighbour[0]} x {args.neighbour[1]} image is in the same batch'
    table = to_table(rows, num_outputs, f'Change of the features of {batch}')
    # For a backbone with fewer outputs, the first or last one is drawn.
    drawn = {name: of_model[min(max(args.output, -len(of_model)), len(of_model) - 1)]
             for name, of_model in differences.items()}
    maps = {'\n'.join([*name.split(', '), f'{100 * difference.error:.0f} %']): difference.cells
            for name, difference in drawn.items()}
    print(write_report(args.out, rows, table, error_figure(maps, 0, f'Change of each cell of {batch}')))


def to_table(rows: list[Row], num_outputs: int, title: str) -> str:
    columns = {**{f'error_{i}': f'output {i}' for i in range(num_outputs)}, 'max_abs': 'largest difference',
               'forward_s': 'forward, s', 'step_s': 'step, s'}
    columns = {key: name for key, name in columns.items() if any(key in row for row in rows)}
    lines = [[row['backbone'], *(f'{row[key]:.2g}' if key in row else '' for key in columns)] for row in rows]
    return f'{title}, relative to how much features vary:\n\n{markdown_table(["backbone", *columns.values()], lines)}'
