"""Trains a detector, segmentor or classifier."""
import argparse
import sys

from openmmlab_tools.cli import parse_run_arguments, run_parser

AMP_DTYPES = dict(fp16='float16', bf16='bfloat16')


def parse_args() -> argparse.Namespace:
    parser = run_parser(__doc__)
    parser.add_argument('--amp', nargs='?', const=True, choices=[*AMP_DTYPES], help='train in mixed precision on a '
                        'GPU; '
                        "without a value, with the config's dtype, or fp16")
    parser.add_argument('--auto-scale-lr', action='store_true', help='scale the learning rate to your batch size')
    parser.add_argument('--resume', nargs='?', const='auto', metavar='CHECKPOINT',
                        help='continue a run from a checkpoint; without a value, from the last checkpoint in the work '
                        'dir, if there is one')
    return parse_run_arguments(parser)


def run(args: argparse.Namespace) -> None:
    from openmmlab_tools.engine import load_config, train
    from openmmlab_tools.engine.work_dir import WorkDir
    cfg = load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
    try:
        train(cfg, AMP_DTYPES.get(args.amp, args.amp), args.auto_scale_lr, args.resume, verbose=args.verbose)
    except KeyboardInterrupt:
        sys.exit(f'Interrupted: {WorkDir(cfg.work_dir).how_to_continue()}.')
