"""Evaluates a checkpoint of a detector, segmentor or classifier."""
import argparse

from openmmlab_tools.cli import parse_run_arguments, run_parser


def parse_args() -> argparse.Namespace:
    parser = run_parser(__doc__)
    parser.add_argument('checkpoint', help='file or URL; or an exported .onnx or .pt2 file, which onnxruntime, '
                        'OpenVINO or torch runs on the CPU')
    parser.add_argument('--show-dir', help='folder for images with the labels and the predictions side by side')
    parser.add_argument('--out', help='new folder for the predictions: predictions.bbox.json and predictions.segm.json '
                        "in COCO's format for results, or a label map for each image")
    parser.add_argument('--tta', action='store_true', help="test-time augmentation: merge the predictions for six "
                        "views of each image (flips and sizes), or for the views in the config's tta_pipeline; "
                        "detectors return only boxes, without masks")
    parser.add_argument('--report', metavar='FOLDER', help='folder for a report: index.html to read, report.json, and '
                        'suspects.json with labels that may be wrong')
    parser.add_argument('--compare', metavar='FILE', help='report.json of another test: the report then '
                        'says which model is better (permutation test)')
    parser.add_argument('--at-most-missed', type=float, metavar='SHARE', help='choose the score that boxes must exceed '
                        'so that new images miss at most this share of their objects, with 95 %% confidence, and write '
                        'it to thresholds.json, which predictions read; detectors only')
    return parse_run_arguments(parser)


def run(args: argparse.Namespace) -> None:
    from openmmlab_tools.engine import load_config, test
    cfg = load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
    test(cfg, args.checkpoint, args.show_dir, verbose=args.verbose, tta=args.tta, out=args.out, report=args.report,
         compare=args.compare, at_most_missed=args.at_most_missed)
