"""Measures translation equivariance: whether the features of a backbone move with a picture on an empty canvas.

Without --checkpoint, it compares several position encodings in the same backbone with the same random weights. With
--checkpoint, it measures the trained backbone. Writes a figure, and a table as .md and .csv.
"""
import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from mmengine.config import Config
from rich.progress import track
from torch import Tensor

from cpvt_mm.models.create import load_backbone
from lab import equivariance
from lab.results import write_report
from openmmlab_runs.checkpoints.loading import backbone_config, to_input
from openmmlab_runs.cli import add_cfg_options
from openmmlab_runs.engine import load_config
from openmmlab_runs.errors import UserError, exit_on_error
from openmmlab_runs.texts import markdown_table

IMAGENET = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('config', nargs='?', help='config file of mmdet, mmseg or mmpretrain; if not given, '
                        '--backbone is used')
    parser.add_argument('--checkpoint', help="weights of the config's model; not given: random weights")
    add_cfg_options(parser)
    parser.add_argument('--backbone', choices=['CPVT', 'PyramidCPVT'], default='CPVT',
                        help='backbone if there is no config')
    parser.add_argument('--arch', default='tiny', help='arch of --backbone')
    parser.add_argument('--image', type=Path, help='image whose central square is the picture; not given: smooth noise')
    parser.add_argument('--size', type=int, default=224,
                        help='side of the canvas in pixels; the picture is smaller by twice the shift')
    parser.add_argument('--shift', type=int, default=32, help='shift of the picture in pixels, in eight directions')
    parser.add_argument('--margin', type=int, default=2,
                        help='excluded cells of the feature map at each border; PEGs of kernel size 3 affect 2 cells')
    parser.add_argument('--output', type=int, metavar='INDEX',
                        help="index of the backbone's output; not given: the last with a stride of 16 or less")
    parser.add_argument('--seed', type=int, default=0, help='seed of random weights and noise')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/translation_equivariance.png'),
                        help='file of the figure')
    return parser.parse_args()


def read_config(args: argparse.Namespace) -> Config:
    if args.config:
        return load_config(args.config, args.cfg_options)
    if args.checkpoint or args.cfg_options:
        raise UserError('--checkpoint and --cfg-options need a config: pass the config of the training.')
    backbone = dict(type=f'cpvt_mm.{args.backbone}', arch=args.arch, img_size=args.size)
    return Config(dict(model=dict(backbone=backbone, data_preprocessor=IMAGENET)))


def read_canvas(args: argparse.Namespace, cfg: Config) -> Tensor:
    """Returns the canvas with the picture in the middle, with space for shifts around it: `(1, 3, size, size)`."""
    side = args.size - 2 * args.shift
    if args.shift < 1 or side < 1:
        raise UserError(f'--size {args.size} and --shift {args.shift} leave no pixels for the picture: choose a '
                        'positive shift of less than half the size.')
    picture = (to_input(equivariance.read_square(args.image, side), cfg) if args.image
               else equivariance.smooth_noise(side, args.seed))
    # The space is zero, like the padding of batches.
    return F.pad(picture, (args.shift,) * 4)


def measure_all(args: argparse.Namespace, cfg: Config) -> dict[str, list[equivariance.Equivariance]]:
    """Measures the full network with each encoding, and again with its attention removed."""
    canvas, backbone = read_canvas(args, cfg), backbone_config(cfg)
    own = backbone.get('position_encoding', dict(type='PEG'))
    if args.checkpoint:
        encodings = {'of the checkpoint': own}
    else:
        known = equivariance.ENCODINGS
        encodings = known if own in known.values() else {'of the config': own, **known}
    results: dict[str, list[equivariance.Equivariance]] = {}
    for name, encoding in track(encodings.items(), 'Measuring'):
        backbone.position_encoding = encoding
        torch.manual_seed(args.seed)  # some encodings draw fixed random values
        model = load_backbone(cfg, args.checkpoint)
        if not args.checkpoint:
            equivariance.draw_weights(model, args.seed)
        full = equivariance.measure_backbone(model, canvas, args.shift, args.margin, args.output)
        equivariance.remove_attention(model)
        results[name] = [full, equivariance.measure_backbone(model, canvas, args.shift, args.margin, args.output)]
    return results


@exit_on_error
def main() -> None:
    args = parse_args()
    results = measure_all(args, read_config(args))
    full = {name: result for name, (result, _) in results.items()}
    stride = next(iter(full.values())).stride
    what = Path(args.config or f'{args.backbone}-{args.arch}').stem
    title = (f'{what}, features of stride {stride}: a picture moves by {args.shift} pixels on a canvas of '
             f'{args.size} x {args.size}')
    cells = {f'{name}: {result.error:.2g}': result.cells for name, result in full.items()}
    rows = [dict(encoding=name, error=result.error, error_without_attention=removed.error)
            for name, (result, removed) in results.items()]
    table = f'{title}. Relative error:\n\n' + markdown_table(
        ['encoding', 'full network', 'attention removed'],
        [[name, f'{result.error:.2g}', f'{removed.error:.2g}'] for name, (result, removed) in results.items()])
    written = write_report(args.out, rows, table, equivariance.error_figure(cells, args.margin, title))
    print(table, written, sep='\n')
