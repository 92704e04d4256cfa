"""Evaluates a checkpoint of a detector, segmentor or classifier."""
import argparse

from openmmlab_runs.cli import add_run_arguments, command_parser, parse_run_arguments
from openmmlab_runs.errors import exit_on_error


def parse_args() -> argparse.Namespace:
    parser = command_parser(__doc__)
    add_run_arguments(parser)
    parser.add_argument('checkpoint', help='file or URL')
    parser.add_argument('--show-dir', help='folder for images painted with ground truth and prediction')
    return parse_run_arguments(parser)


@exit_on_error
def main() -> None:
    args = parse_args()
    from openmmlab_runs.engine import load_config, test
    cfg = load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
    test(cfg, args.checkpoint, args.show_dir, verbose=args.verbose)
