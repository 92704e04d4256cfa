"""Trains a detector, segmentor or classifier."""
import argparse
import sys
from importlib.util import find_spec

if not find_spec('cpvt_mm'):
    sys.exit(f'error: {sys.executable} has no cpvt_mm: activate the environment that has it (docs/get_started.md).')

import cpvt_mm  # noqa: F401  # so that configs may name its classes without its scope
from openmmlab_runs.cli import add_run_arguments, parse_run_arguments
from openmmlab_runs.engine import load_config, train
from openmmlab_runs.engine.resuming import how_to_continue
from openmmlab_runs.errors import exit_on_error


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_run_arguments(parser)
    parser.add_argument('--amp', action='store_true', help='train in mixed precision')
    parser.add_argument('--auto-scale-lr', action='store_true', help='scale the learning rate with the batch size')
    parser.add_argument('--resume', nargs='?', const='auto', metavar='CHECKPOINT',
                        help='resume from a checkpoint; without a value, from the last one in the work dir')
    return parse_run_arguments(parser)


@exit_on_error
def main() -> None:
    args = parse_args()
    cfg = load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
    try:
        train(cfg, args.amp, args.auto_scale_lr, args.resume, verbose=args.verbose)
    except KeyboardInterrupt:
        sys.exit(f'Interrupted: {how_to_continue(cfg.work_dir)}.')


if __name__ == '__main__':
    main()
