"""Evaluates a checkpoint of a detector, segmentor or classifier."""
import argparse

from openmmlab_tools.cli import parse_run_arguments, run_parser


def parse_args() -> argparse.Namespace:
    parser = run_parser(__doc__)
    parser.add_argument('checkpoint', help='file or URL')
    parser.add_argument('--show-dir', help='folder for images painted with ground truth and prediction')
    parser.add_argument('--out', help='new folder for the predictions: predictions.bbox.json and predictions.segm.json '
                        'as COCO has results, or a label map of each image')
    parser.add_argument('--tta', action='store_true', help="merge the predictions of six views of each image, by flips "
                        "and sizes, or of the config's tta_pipeline; of detectors only boxes, without masks")
    parser.add_argument('--report', metavar='FOLDER', help='folder for a report: index.html to read, report.json, and '
                        'suspects.json with labels that may be wrong')
    parser.add_argument('--compare', metavar='FILE', help='report.json of another test to compare with by '
                        'a permutation test, in the report')
    parser.add_argument('--at-most-missed', type=float, metavar='SHARE', help='choose the score that boxes must exceed '
                        'so that at most this share of the objects of new images is missed, with a confidence of '
                        '95 %%; in thresholds.json')
    return parse_run_arguments(parser)


def run(args: argparse.Namespace) -> None:
    from openmmlab_tools.engine import load_config, test
    cfg = load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
    test(cfg, args.checkpoint, args.show_dir, verbose=args.verbose, tta=args.tta, out=args.out, report=args.report,
         compare=args.compare, at_most_missed=args.at_most_missed)
