"""Draws attention maps of backbone blocks: over an image for chosen queries, or averaged over a folder for all queries.

--image writes one figure per query, with a panel for each block. --average writes one figure, with a matrix for each
block: queries in rows and keys in columns, as in the paper (arXiv 2102.10882). It also prints, for each block, how far
the key with the largest weight is from its query.
"""
import argparse
from pathlib import Path

from matplotlib.figure import Figure
from mmengine.config import Config
from rich.progress import track

from cpvt_mm.models import CPVT, PyramidCPVT
from cpvt_mm.models.create import load_backbone
from lab import attention
from lab.arguments import positive
from openmmlab_tools.checkpoints.loading import to_input
from openmmlab_tools.cli import add_cfg_options
from openmmlab_tools.engine import load_config
from openmmlab_tools.errors import exit_on_error
from openmmlab_tools.files import list_images, write_figure
from openmmlab_tools.pictures.images import read_image

PANELS_A_ROW = 6


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file of mmdet, mmseg or mmpretrain')
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument('--image', type=Path, help='image file')
    source.add_argument('--average', type=Path, metavar='FOLDER', help='folder of images')
    parser.add_argument('--checkpoint', help="weights of the config's model (default: random weights)")
    add_cfg_options(parser)
    parser.add_argument('--query', nargs='+', action='append', metavar='X Y', default=[],
                        help='column and row, from 0, of a pixel of the image resized to --size (not of the file), or '
                        'cls for the class token; may be repeated (default: the centre)')
    parser.add_argument('--blocks', nargs='+', metavar='NAME',
                        help='numbers of blocks of CPVT, STAGE.BLOCK of PyramidCPVT, from 0 (default: the second of '
                        'each stage)')
    parser.add_argument('--heads', action='store_true', help='draw each head beside the mean of the heads')
    parser.add_argument('--size', type=positive, nargs=2, metavar=('HEIGHT', 'WIDTH'),
                        help='size in pixels to resize images to (default: no resizing; with --average 224 224)')
    parser.add_argument('--out-dir', type=Path, default=Path('work_dirs/attention_maps'),
                        help='folder of the figures (default: %(default)s)')
    return parser.parse_args()


def overlays_of(maps: dict[str, attention.AttentionMap], query: attention.Query, heads: bool
                ) -> list[list[attention.Overlay]]:
    """Returns rows of panels: with `heads`, for each block the mean and each head; else the means of all blocks."""
    rows = []
    for name, block in maps.items():
        weights = block.of_query(query)
        panels = {f'block {name}': weights.mean(dim=0)}
        if heads and len(weights) > 1:
            panels |= {f'block {name}, head {i}': head for i, head in enumerate(weights)}
        rows.append([attention.Overlay(f'{title}\nhighest {values.max():.1%}', values, block.key_cell)
                     for title, values in panels.items()])
    if heads:
        return rows
    means = [row[0] for row in rows]
    return [means[i:i + PANELS_A_ROW] for i in range(0, len(means), PANELS_A_ROW)]


def draw_queries(args: argparse.Namespace, cfg: Config, backbone: CPVT | PyramidCPVT,
                 blocks: list[str]) -> dict[str, Figure]:
    """Returns a figure for each query, by file name."""
    image = read_image(args.image, args.size)
    height, width = image.shape[:2]
    words = args.query or [[str(width // 2), str(height // 2)]]
    queries = [attention.parse_query(query, backbone, height, width) for query in words]
    maps = attention.collect(backbone, to_input(image, cfg), blocks)
    figures = {}
    for query in queries:
        place = 'the class token' if query == 'cls' else f'pixel x={query[0]}, y={query[1]}'
        name = 'cls' if query == 'cls' else f'{query[0]}_{query[1]}'
        figures[f'{args.image.stem}_{name}'] = attention.overlay_figure(
            image, overlays_of(maps, query, args.heads), None if query == 'cls' else query,
            f'Attention of {place}\ninput of {height} x {width} pixels (height x width)')
    return figures


def draw_average(args: argparse.Namespace, cfg: Config, backbone: CPVT | PyramidCPVT,
                 blocks: list[str]) -> dict[str, Figure]:
    """Returns one figure, by file name."""
    height, width = args.size or (224, 224)
    paths = list_images(args.average)
    images = (to_input(read_image(path, (height, width)), cfg) for path in track(paths, 'Averaging'))
    title = (f'Attention, mean of heads and of {len(paths)} images of {height} x {width} pixels (height x width); mean '
             'distance from a query to the key with the largest weight')
    means = attention.average(backbone, images, blocks)
    for name, block in means.items():
        print(f'block {name}: the key with the largest weight is {block.distance:.1f} pixels from its query, on '
              'average')
    return {f'{args.average.resolve().name}_average': attention.grid_figure(means, title)}


@exit_on_error
def main() -> None:
    args = parse_args()
    cfg = load_config(args.config, args.cfg_options)
    backbone = load_backbone(cfg, args.checkpoint)
    if not args.checkpoint:
        print('The weights are random: no --checkpoint is given.')
    draw = draw_average if args.average else draw_queries
    figures = draw(args, cfg, backbone, args.blocks or attention.default_blocks(backbone))
    args.out_dir.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        path = args.out_dir / f'{name}.png'
        write_figure(path, figure)
        print(path)
