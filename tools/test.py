"""Evaluates a checkpoint of a detector, segmentor or classifier."""
import argparse
import sys
from importlib.util import find_spec

if not find_spec('cpvt_mm'):
    sys.exit(f'error: {sys.executable} has no cpvt_mm: activate the environment that has it (docs/get_started.md).')

import cpvt_mm  # noqa: F401  # so that configs may name its classes without its scope
from openmmlab_runs.cli import add_run_arguments, parse_run_arguments
from openmmlab_runs.engine import load_config, test
from openmmlab_runs.errors import exit_on_error


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_run_arguments(parser)
    parser.add_argument('checkpoint', help='file or URL')
    parser.add_argument('--show-dir', help='folder for images painted with ground truth and prediction')
    return parse_run_arguments(parser)


@exit_on_error
def main() -> None:
    args = parse_args()
    cfg = load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
    test(cfg, args.checkpoint, args.show_dir, verbose=args.verbose)


if __name__ == '__main__':
    main()
