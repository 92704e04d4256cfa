"""Prints a markdown table of the parameters and FLOPs of configs, attention included."""
import argparse
from pathlib import Path

from rich.progress import track

from lab.arguments import check_least
from lab.complexity import measure_config
from lab.results import markdown_table
from openmmlab_runs.engine import load_config
from openmmlab_runs.errors import exit_on_error

SHAPES = {'mmdet': (800, 1216), 'mmseg': (512, 512), 'mmpretrain': (224, 224)}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('configs', nargs='+', help='config files')
    parser.add_argument('--shape', type=int, nargs=2, metavar=('HEIGHT', 'WIDTH'),
                        help=f'image size in pixels (default: {SHAPES})')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
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
