"""Prints a markdown table of the parameters and FLOPs of configs, attention included."""
import argparse
from pathlib import Path

from lab.arguments import positive
from openmmlab_tools.errors import exit_on_error
from openmmlab_tools.texts import markdown_table

SHAPES = {'mmdet': (800, 1216), 'mmseg': (512, 512), 'mmpretrain': (224, 224)}


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('configs', nargs='+', help='config files')
    parser.add_argument('--shape', type=positive, nargs=2, metavar=('HEIGHT', 'WIDTH'),
                        help=f'image size in pixels (default: {SHAPES})')
    args = parser.parse_args()
    from rich.progress import track

    from lab.flops import measure_config
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
