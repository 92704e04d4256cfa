"""Exports a backbone, segmentor or RetinaNet for images of any size, and compares the file with the model at ten sizes.

OUT.pt2 is for torch.export.load, OUT.onnx for onnxruntime, OpenVINO and other runtimes. The comparison uses each of
them that is installed. The exported model takes the images that the config's data preprocessor returns: float32,
(batch, 3, height, width), normalized with its mean and std. They are RGB if it sets bgr_to_rgb. The file contains
these settings. The outputs are the maps of a backbone, a segmentor's logits at every pixel, or a detector's boxes
(docs/guides/deployment.md). Files of segmentors and detectors also contain the names and colours of the classes.
projects/onnx_two_stage exports Faster and Mask R-CNN.
"""
import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from openmmlab_tools.cli import add_cfg_options, command_parser
from openmmlab_tools.errors import say
from openmmlab_tools.texts import markdown_table

if TYPE_CHECKING:
    from mmengine.config import Config
    from torch import nn

PARTS = ('backbone', 'segmentor', 'detector')


def parse_args() -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('config', help='config file of mmdet or mmseg')
    parser.add_argument('out', type=Path, metavar='OUT', help='file to write, .pt2 or .onnx')
    parser.add_argument('--checkpoint', help="weights of the config's model (default: random; required for a detector)")
    parser.add_argument('--part', choices=PARTS, default='backbone',
                        help='the backbone alone, or the whole model: a segmentor of mmseg, to both formats, or a '
                             'RetinaNet of mmdet, to .onnx (default: backbone)')
    parser.add_argument('--image', help='image for the comparison, resized to the ten sizes (default: noise)')
    add_cfg_options(parser)
    return parser.parse_args()


def export(args: argparse.Namespace, cfg: 'Config', model: 'nn.Module') -> None:
    """Exports a model of a config, and compares the file with it in each installed runtime."""
    from rich.progress import track

    from cpvt_mm.export import exported
    from cpvt_mm.export.comparing import SHAPES, check, compare
    from cpvt_mm.export.description import describe, describe_classes
    from openmmlab_tools.checkpoints.loading import to_input
    from openmmlab_tools.pictures.images import read_image
    description = describe(cfg)
    image = to_input(read_image(args.image), cfg) if args.image else None
    if args.part != 'backbone':
        description |= describe_classes(cfg, args.checkpoint)
    with exported(model, args.out, description, lambda step: say(f'{step} ...')) as runs:
        rows = list(track(compare(model, runs, image), 'Comparing', total=len(SHAPES)))
        last = 'largest output' if rows[0][0].count is None else 'boxes'
        print(markdown_table(('batch', 'height x width', *(f'difference, {runtime}' for runtime in runs), last), (
            (first.shape[0], '{1} x {2}'.format(*first.shape),
             *(f'{difference.largest:.1e}' for difference in (first, *others)),
             f'{first.scale:.2g}' if first.count is None else first.count) for first, *others in rows)), end='')
        check([difference for row in rows for difference in row])
    say(f'{args.out}: written, {args.out.stat().st_size / 2**20:.1f} MiB')


def run(args: argparse.Namespace) -> None:
    import torch

    from cpvt_mm.export import load_part
    from openmmlab_tools.engine import load_config
    cfg = load_config(args.config, args.cfg_options)
    torch.manual_seed(0)
    export(args, cfg, load_part(cfg, args.part, args.checkpoint))
