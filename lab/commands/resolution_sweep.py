"""Tests one checkpoint of a detector or segmentor at several image sizes.

Writes results.csv, results.md and results.png to the work dir. Run it again with other sizes or modes to add them to
the results.
"""
import argparse
import itertools
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from mmengine.config import Config, ConfigDict
from rich.progress import track

from lab.arguments import parse_sides
from lab.results import MARKERS, Results, Row, write_report
from openmmlab_tools.checkpoints.fetching import fetched, sha256
from openmmlab_tools.cli import add_cfg_options, resumable
from openmmlab_tools.engine import load_config, test
from openmmlab_tools.errors import UserError
from openmmlab_tools.files import held
from openmmlab_tools.texts import figure_text, label, markdown_table

Mode = dict[str, Any]  # values of `model.test_cfg`
# Values by size, for each metric and mode.
Curves = dict[str, dict[str, float]]
DEFAULT_SIDE = 512  # pixels, of configs that have a `scale_factor`
# The default metrics; those that a test does not have are ignored.
METRICS = ('coco/bbox_mAP', 'coco/segm_mAP', 'mIoU')


def parse_size(text: str) -> str:
    """Checks a size such as '512' or '1333x800' (width first), and returns it. The size of a square becomes one number.
    """
    width, height = parse_sides(text)
    return f'{width}' if width == height else text


def side(size: str) -> float:
    """Returns the side of a square with the same number of pixels as a size such as '512' or '1333x800'."""
    return math.sqrt(math.prod(parse_sides(size)))


def get_test_size(cfg: Config) -> tuple[int, int]:
    """Returns width and height of the test pipeline's scale; a square of 512 pixels if its Resize has no `scale`."""
    scale = _resizes(cfg)[0].get('scale') or DEFAULT_SIDE
    return (scale, scale) if isinstance(scale, int) else tuple(scale)


def set_test_size(cfg: Config, size: str) -> None:
    """Sets the scale of the test pipeline.

    With `keep_ratio`, images are resized to fit into `size`, with the longer side along the longer side of `size`.
    """
    for transform in _resizes(cfg):
        transform.scale = parse_sides(size)


def _resizes(cfg: Config) -> list[ConfigDict]:
    pipeline = cfg.test_dataloader.dataset.get('pipeline') or ()
    resizes = [transform for transform in pipeline if str(transform.type).split('.')[-1] == 'Resize']
    if not resizes:
        raise UserError(f'The test pipeline of config {cfg.filename} has no Resize, so no test size can be set: add '
                        'one.')
    return resizes


def resolve_mode(cfg: Config, name: str | None = None, crop_size: Sequence[int] | None = None,
                 stride: Sequence[int] | None = None) -> Mode:
    """Returns values of `model.test_cfg` for 'whole' or 'slide', by default the config's; {} without a segmentor."""
    if cfg.default_scope != 'mmseg':
        if name:
            raise UserError(f'--mode {name} is for segmentors, but config {cfg.filename} is for {cfg.default_scope}: '
                            'leave it out.')
        return {}
    test_cfg = cfg.model.get('test_cfg') or {}
    if (name or test_cfg.get('mode', 'whole')) == 'whole':
        return dict(mode='whole')
    windows: dict[str, Any] = dict(crop_size=crop_size or test_cfg.get('crop_size'),
                                   stride=stride or test_cfg.get('stride'))
    for key, value in windows.items():
        if value is None:
            raise UserError(f'model.test_cfg of config {cfg.filename} has no {key} for sliding windows: pass '
                            f'--{key.replace("_", "-")} HEIGHT WIDTH.')
    if any(not 1 <= step <= length for step, length in zip(windows['stride'], windows['crop_size'], strict=True)):
        raise UserError('--stride is {} {}, but must be from 1 to --crop-size ({} {}): windows further apart leave '
                        'gaps.'.format(*windows['stride'], *windows['crop_size']))
    return dict(mode='slide', **{key: tuple(value) for key, value in windows.items()})


def name_of(mode: Mode) -> str:
    return 'slide {}x{} by {}x{}'.format(*mode['crop_size'], *mode['stride']) if 'stride' in mode else mode['mode']


def load(args: argparse.Namespace, folder: Path) -> Config:
    cfg = load_config(args.config, args.cfg_options, work_dir=str(folder))
    cfg.log_level = 'WARNING'
    # Persistent workers end in a destructor, which takes seconds and ignores Ctrl-C; a test needs one pass only.
    cfg.test_dataloader.persistent_workers = False
    return cfg


def open_results(args: argparse.Namespace, folder: Path) -> Results:
    config = {key: value for key, value in load(args, folder).to_dict().items() if key != 'work_dir'}
    with fetched(args.checkpoint) as local:
        return Results(folder, dict(checkpoint=sha256(Path(local)), config=config))


def run_test(args: argparse.Namespace, folder: Path, size: str, mode: Mode) -> Row:
    """Tests at one size; returns the mode (if there is one), the size, and the metrics."""
    cfg = load(args, folder)
    set_test_size(cfg, size)
    if mode:
        cfg.merge_from_dict({'model.test_cfg': mode})
    metrics = test(cfg, args.checkpoint)
    return {**(dict(mode=name_of(mode)) if mode else {}), 'size': size,
            **{name: float(value) for name, value in metrics.items()}}


def to_markdown(lines: Curves) -> str:
    """Makes a table with a line for each curve and a column for each size."""
    sizes = sorted({size for values in lines.values() for size in values}, key=side)
    # Fractions need more digits than percentages.
    digits = 1 if max(max(values.values()) for values in lines.values()) > 1 else 3
    cells = [[name, *(f'{values[size]:.{digits}f}' if size in values else '' for size in sizes)]
             for name, values in lines.items()]
    return markdown_table(['metric', *(f'{size} px' for size in sizes)], cells)


def plot(lines: Curves, metric: str, title: str) -> Figure:
    """Plots each curve against the size; a rectangle is at the position of a square with the same area."""
    figure = Figure(figsize=(8, 5), layout='constrained')
    axes = figure.subplots()
    sizes = sorted({size for values in lines.values() for size in values}, key=side)
    for i, (name, values) in enumerate(lines.items()):
        x = sorted(values, key=side)
        axes.plot([side(size) for size in x], [values[size] for size in x], label=label(name),
                  marker=MARKERS[i % len(MARKERS)])
    axes.set(xscale='log', xlabel='test size (pixels a side)', ylabel=label(metric), title=figure_text(title))
    axes.set_xticks([side(size) for size in sizes], labels=sizes,
                    rotation=45 if any('x' in size for size in sizes) else 0)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize='small', loc='center left', bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file of mmdet or mmseg whose test pipeline has a Resize')
    parser.add_argument('checkpoint', help='file or URL')
    parser.add_argument('--sizes', type=parse_size, nargs='+', required=True, metavar='SIZE',
                        help='512: images fit into that square; 1333x800: the longer side has at most 1333 pixels and '
                        'the shorter 800; without keep_ratio in the config, images get exactly that width and height')
    parser.add_argument('--mode', nargs='+', choices=['whole', 'slide'], default=[None],
                        help="whether segmentors process whole images or sliding windows, or both (default: the "
                        "config's)")
    parser.add_argument('--crop-size', type=int, nargs=2, metavar=('HEIGHT', 'WIDTH'),
                        help="size of the windows in pixels (default: the config's model.test_cfg.crop_size)")
    parser.add_argument('--stride', type=int, nargs=2, metavar=('HEIGHT', 'WIDTH'),
                        help="pixels from one window to the next (default: the config's model.test_cfg.stride)")
    parser.add_argument('--metrics', nargs='+', metavar='NAME',
                        help=f'metrics in the table and the plot (default: those of {", ".join(METRICS)} that exist)')
    parser.add_argument('--work-dir', type=Path,
                        help='folder of the results (default: work_dirs/resolution_sweep/<name of the config>)')
    add_cfg_options(parser)
    return parser.parse_args()


def choose_metrics(args: argparse.Namespace, row: Row) -> list[str]:
    """Returns the requested metrics of a result, or else those in METRICS, or else all."""
    names = [name for name in row if name not in ('mode', 'size')]
    for name in args.metrics or ():
        if name not in names:
            raise UserError(f'{name!r} is not a metric of {args.config}: choose from {", ".join(names)}.')
    return list(args.metrics or [name for name in METRICS if name in names] or names)


def report(args: argparse.Namespace, folder: Path, results: Collection[Row]) -> str:
    """Writes all results in the folder, mode by mode and from small to large, and returns a table."""
    modes = list(dict.fromkeys(row.get('mode') for row in results))
    rows = sorted(results, key=lambda row: (modes.index(row.get('mode')), side(row['size'])))
    metrics = choose_metrics(args, rows[0])
    lines: Curves = {}
    for metric, row in itertools.product(metrics, rows):
        name = f'{metric}, {row["mode"]}' if 'mode' in row else metric
        lines.setdefault(name, {})[row['size']] = row[metric]
    figure = plot(lines, metrics[0] if len(metrics) == 1 else 'value', Path(args.config).stem)
    return write_report(folder / 'results', rows, to_markdown(lines), figure)


@resumable
def main() -> None:
    args = parse_args()
    folder = args.work_dir or Path('work_dirs/resolution_sweep') / Path(args.config).stem
    cfg = load(args, folder)
    set_test_size(cfg, args.sizes[0])
    modes = [resolve_mode(cfg, name, args.crop_size, args.stride) for name in args.mode]
    if (args.crop_size or args.stride) and not any('stride' in mode for mode in modes):
        raise UserError('--crop-size and --stride are for sliding windows, but no test uses them: add --mode slide.')
    tests = {f'{size} px, {name_of(mode)}' if mode else f'{size} px': (size, mode)
             # The fastest test first, because only a result shows which metrics exist.
             for mode in modes for size in sorted(args.sizes, key=side)}
    open_results(args, folder)  # refuses a checkpoint that is none, before anything is written
    with held(folder):
        results = open_results(args, folder)
        for row in results.values():
            choose_metrics(args, row)
        for name in track([name for name in tests if name not in results], 'Testing'):
            results.put(name, run_test(args, folder, *tests[name]))
            report(args, folder, results.values())
        print(report(args, folder, results.values()))
