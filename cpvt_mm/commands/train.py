"""Trains a detector, segmentor or classifier."""
import argparse
import sys

from openmmlab_runs.cli import add_run_arguments, command_parser, parse_run_arguments
from openmmlab_runs.errors import exit_on_error


def parse_args() -> argparse.Namespace:
    parser = command_parser(__doc__)
    add_run_arguments(parser)
    parser.add_argument('--amp', action='store_true', help='train in mixed precision')
    parser.add_argument('--auto-scale-lr', action='store_true', help='scale the learning rate with the batch size')
    parser.add_argument('--resume', nargs='?', const='auto', metavar='CHECKPOINT',
                        help='resume from a checkpoint; without a value, from the last one in the work dir')
    return parse_run_arguments(parser)


@exit_on_error
def main() -> None:
    args = parse_args()
    from openmmlab_runs.engine import load_config, train
    from openmmlab_runs.engine.resuming import how_to_continue
    cfg = load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
    try:
        train(cfg, args.amp, args.auto_scale_lr, args.resume, verbose=args.verbose)
    except KeyboardInterrupt:
        sys.exit(f'Interrupted: {how_to_continue(cfg.work_dir)}.')
