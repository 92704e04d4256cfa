"""Tests one checkpoint of a detector or segmentor at several image sizes.

Writes results.csv, results.md and results.png to the work dir. Run it again with other sizes or modes to add them to
the results.
"""
import argparse
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from rich.progress import track

from lab.results import Row
from lab.sweep import Sweep, Windows, parse_size, resolve_mode, set_test_size, side, write_sweep
from openmmlab_runs.cli import add_cfg_options, resumable
from openmmlab_runs.errors import UserError, exit_on_error
from openmmlab_runs.files import held

# The default metrics; those that a test does not have are ignored.
METRICS = ('coco/bbox_mAP', 'coco/segm_mAP', 'mIoU')


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


def choose_metrics(sweep: Sweep, row: Row, names: Sequence[str] | None) -> list[str]:
    """Returns the requested metrics of a result, or else those in METRICS, or else all."""
    found = [name for name in row if name not in ('mode', 'size')]
    for name in names or ():
        if name not in found:
            raise UserError(f'{name!r} is not a metric of {sweep.config}: choose from {", ".join(found)}.')
    return list(names or [name for name in METRICS if name in found] or found)


def report(sweep: Sweep, results: Collection[Row], names: Sequence[str] | None) -> str:
    """Writes all results in the folder, mode by mode and from small to large, and returns them as a table."""
    modes = list(dict.fromkeys(row.get('mode') for row in results))
    rows = sorted(results, key=lambda row: (modes.index(row.get('mode')), side(row['size'])))
    return write_sweep(sweep.folder, rows, choose_metrics(sweep, rows[0], names), Path(sweep.config).stem)


@exit_on_error
@resumable
def main() -> None:
    args = parse_args()
    folder = args.work_dir or Path('work_dirs/resolution_sweep') / Path(args.config).stem
    sweep = Sweep(args.config, args.checkpoint, folder, args.cfg_options)
    cfg = sweep.load()
    set_test_size(cfg, args.sizes[0])
    modes = [resolve_mode(cfg, name, args.crop_size, args.stride) for name in args.mode]
    if (args.crop_size or args.stride) and not any(isinstance(mode, Windows) for mode in modes):
        raise UserError('--crop-size and --stride are for sliding windows, but no test uses them: add --mode slide.')
    tests = {f'{size} px, {mode}' if mode else f'{size} px': partial(sweep.test, size, mode)
             # The fastest test first, because only a result shows which metrics exist.
             for mode in modes for size in sorted(args.sizes, key=lambda size: side(str(size)))}
    sweep.results()  # refuses a checkpoint that is none, before anything is written
    with held(folder):
        results = sweep.results()
        for row in results.values():
            choose_metrics(sweep, row, args.metrics)
        for name in track([name for name in tests if name not in results], 'Testing'):
            results.put(name, tests[name]())
            report(sweep, results.values(), args.metrics)
        print(report(sweep, results.values(), args.metrics))
    print(f'Also in {folder}: results.csv, results.md, results.png')
