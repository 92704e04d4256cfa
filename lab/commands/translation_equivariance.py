"""Measures translation equivariance: whether the features of a backbone move with a picture on an empty canvas.

Without --checkpoint, it compares several position encodings in the same backbone with the same random weights. With
--checkpoint, it measures the trained backbone. Writes a figure, and a table as .md and .csv.

The picture is shifted by whole cells of every grid in the network: patches do not overlap, so these backbones are not
equivariant to other shifts. No content enters or leaves the canvas. Attention without positions then sees the same
tokens in another order, so only the position encoding can change the features.
"""
import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from mmengine.config import Config
from rich.progress import track
from torch import Tensor, nn

from cpvt_mm.archs import STRIDES
from cpvt_mm.models import CPVT, PyramidCPVT
from cpvt_mm.models.create import load_backbone
from cpvt_mm.models.layers import Attention, PatchEmbed
from lab.features import (
    ENCODINGS,
    IMAGENET,
    check_gives_maps,
    draw_weights,
    error_figure,
    read_square,
    smooth_noise,
)
from lab.results import write_report
from openmmlab_tools.checkpoints.loading import backbone_config, to_input
from openmmlab_tools.cli import add_cfg_options
from openmmlab_tools.engine import load_config
from openmmlab_tools.errors import UserError, exit_on_error
from openmmlab_tools.texts import markdown_table


@dataclass(frozen=True)
class Equivariance:
    """The equivariance error of the features of one image.

    Attributes:
        error: RMS over inner cells of the difference between the features of the same content before and after a shift,
            relative to that of their spatial variation. 0: features move with the image. sqrt(2): they are
            uncorrelated.
        cells: The error of each cell of the canvas, `(h, w)`; NaN if no shift moves its content to an inner cell.
        stride: Stride of the features in pixels.
    """
    error: float
    cells: Tensor
    stride: int


def measure(features: Callable[[Tensor], Tensor], image: Tensor, shift: int, stride: int, margin: int) -> Equivariance:
    """Compares the features `(1, C, h, w)` of an image before and after a shift in each of the eight directions.

    The outer `shift` pixels of the image are empty; they are a multiple of `stride`. `margin` is the number of cells at
    each border that are not inner cells; padding affects them even without attention. The spatial variation of a
    channel is about its mean, because a constant does not distinguish positions.
    """
    still, step = features(image)[0], shift // stride
    inner = (..., slice(margin, still.shape[1] - margin), slice(margin, still.shape[2] - margin))
    moves = []
    for y, x in itertools.product((-step, 0, step), repeat=2):
        if (y, x) != (0, 0):
            moved = torch.full_like(still, math.nan)
            moved[inner] = features(image.roll((y * stride, x * stride), dims=(2, 3)))[0][inner]
            # Shifts back to the original position; negative padding crops.
            moved = F.pad(moved, (-x, x, -y, y), value=math.nan)
            moves.append((still - moved).square().mean(dim=0))
    squares = torch.stack(moves)
    variance = still[inner].var(dim=(1, 2), correction=0).mean()
    return Equivariance(error=(squares[inner].nanmean() / variance).sqrt().item(),
                        cells=(squares.nanmean(dim=0) / variance).sqrt(), stride=stride)


@torch.no_grad()
def measure_backbone(backbone: CPVT | PyramidCPVT, image: Tensor, shift: int, margin: int,
                     output: int | None = None) -> Equivariance:
    """Calls `measure` for one output of a backbone in eval mode.

    The sides of the image and the shift are multiples of `cell_period`. `output` defaults to the last one with a stride
    of 16 or less, which gives enough cells. `margin` is in cells of the output.
    """
    check_gives_maps(backbone)
    strides, period = backbone.strides, cell_period(backbone)
    if output is None:
        output = max((i for i, stride in enumerate(strides) if stride <= 16), default=0)
    if output not in range(len(strides)):
        raise UserError(f'output {output} does not exist: choose one from 0 to {len(strides) - 1}.')
    height, width = image.shape[2:]
    for name, pixels in (('canvas', height), ('canvas', width), ('shift', shift)):
        if pixels < 1 or pixels % period:
            raise UserError(f'the {name} of {pixels} pixels is not a multiple of {period} pixels, which are whole '
                            'cells of every grid in this backbone: choose a multiple.')
    stride = strides[output]
    if margin < 0 or min(height, width) // stride - 2 * margin - shift // stride < 1:
        raise UserError(f'a margin of {margin} cells of {stride} pixels leaves no cell to compare in a canvas of '
                        f'{width} x {height} pixels after a shift by {shift}: choose another margin, shift or size.')
    return measure(lambda canvas: backbone(canvas)[output], image, shift, stride, margin)


def cell_period(backbone: CPVT | PyramidCPVT) -> int:
    """Returns the least number of pixels that is a whole number of cells in all grids of tokens and of reduced keys."""
    if isinstance(backbone, CPVT):
        return backbone.patch_embed.patch_size
    return math.lcm(*STRIDES[:len(backbone.stages)], *(
        STRIDES[i] * attn.sr.patch_size for i, stage in enumerate(backbone.stages) for attn in stage.modules()
        if isinstance(attn, Attention) and isinstance(attn.sr, PatchEmbed)))


def remove_attention(backbone: nn.Module) -> None:
    """Makes all attention layers return zero, so that only the residual path and the MLP of each block remain."""
    for module in backbone.modules():
        if isinstance(module, Attention):
            nn.init.zeros_(module.proj.weight)
            nn.init.zeros_(module.proj.bias)


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
    picture = (to_input(read_square(args.image, side), cfg) if args.image
               else smooth_noise(side, args.seed))
    # The space is zero, like the padding of batches.
    return F.pad(picture, (args.shift,) * 4)


def measure_all(args: argparse.Namespace, cfg: Config) -> dict[str, list[Equivariance]]:
    """Measures the full network with each encoding, and again with its attention removed."""
    canvas, backbone = read_canvas(args, cfg), backbone_config(cfg)
    configured = backbone.get('position_encoding', dict(type='PEG'))
    if args.checkpoint:
        encodings = {'of the checkpoint': configured}
    else:
        encodings = ENCODINGS if configured in ENCODINGS.values() else {'of the config': configured, **ENCODINGS}
    results: dict[str, list[Equivariance]] = {}
    for name, encoding in track(encodings.items(), 'Measuring'):
        backbone.position_encoding = encoding
        torch.manual_seed(args.seed)  # some encodings draw fixed random values
        model = load_backbone(cfg, args.checkpoint)
        if not args.checkpoint:
            draw_weights(model, args.seed)
        full = measure_backbone(model, canvas, args.shift, args.margin, args.output)
        remove_attention(model)
        results[name] = [full, measure_backbone(model, canvas, args.shift, args.margin, args.output)]
    return results


@exit_on_error
def main() -> None:
    args = parse_args()
    results = measure_all(args, read_config(args))
    full = {name: result for name, (result, _) in results.items()}
    stride = next(iter(full.values())).stride
    subject = Path(args.config or f'{args.backbone}-{args.arch}').stem
    title = (f'{subject}, features of stride {stride}: a picture moves by {args.shift} pixels on a canvas of '
             f'{args.size} x {args.size}')
    cells = {f'{name}: {result.error:.2g}': result.cells for name, result in full.items()}
    rows = [dict(encoding=name, error=result.error, error_without_attention=removed.error)
            for name, (result, removed) in results.items()]
    table = f'{title}. Relative error:\n\n' + markdown_table(
        ['encoding', 'full network', 'attention removed'],
        [[name, f'{result.error:.2g}', f'{removed.error:.2g}'] for name, (result, removed) in results.items()])
    print(write_report(args.out, rows, table, error_figure(cells, args.margin, title)))
