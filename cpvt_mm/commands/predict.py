"""Paints predictions of a detector or segmentor on an image, or on all images of a folder, and writes them.

The painted street.jpg is street.jpg.png in the output folder, so that it differs from that of street.png. A detector
also writes predictions.json, in COCO's layout with a score for each box, also for those that are not painted. A
segmentor also writes label_maps/street.jpg.png, with the number of a class at each pixel, from 0.

Without a config and a checkpoint, it uses the model in demo/nuclei of a clone, which finds nuclei of cells in
microscope images.
"""
import argparse
import json
from pathlib import Path

from PIL import Image, UnidentifiedImageError
from rich.progress import track

from openmmlab_runs.cli import command_parser
from openmmlab_runs.data.findings import LOSES_BITS, has_16_bits
from openmmlab_runs.engine import load_config
from openmmlab_runs.errors import UserError, exit_on_error, say, sentence
from openmmlab_runs.files import IMAGE_SUFFIXES, held, list_images, write_image, write_text
from openmmlab_runs.predicting import MAX_PIXELS, Prediction, build_inferencer, paint, to_coco

NUCLEI = Path(__file__).parents[2] / 'demo/nuclei'  # only in a clone


def parse_args() -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('image', type=Path,
                        help=f'image file, or folder with images ({", ".join(IMAGE_SUFFIXES)})')
    parser.add_argument('config', nargs='?', help='config file of mmdet or mmseg (default: that of demo/nuclei)')
    parser.add_argument('checkpoint', nargs='?', help='file or URL')
    parser.add_argument('--out-dir', type=Path, default=Path('outputs'),
                        help='folder of the painted images and the predictions (default: %(default)s)')
    parser.add_argument('--no-labels', action='store_true', help='paint without names and scores')
    parser.add_argument('--score-thr', type=float, metavar='SCORE',
                        help='paint only boxes and masks with a score above this; detectors only (default: 0.3)')
    parser.add_argument('--max-pixels', type=int, default=MAX_PIXELS, metavar='NUMBER',
                        help='leave out images with more pixels, which take much memory and time (default: '
                             '%(default)s)')
    parser.add_argument('--device', help='device such as cpu or cuda:0 (default: a GPU if there is one)')
    args = parser.parse_args()
    if args.config is None:
        if not NUCLEI.is_dir():
            parser.error('the model of demo/nuclei is only in a clone: pass a config and a checkpoint.')
        args.config, args.checkpoint = str(NUCLEI / 'config.py'), str(NUCLEI / 'model.safetensors')
    elif args.checkpoint is None:
        parser.error(f'config {args.config} has no checkpoint: pass both, or none of them.')
    return args


def loses_bits(path: Path) -> bool:
    """Returns whether an image has 16 bits per channel; False if Pillow does not know its format."""
    try:
        with Image.open(path) as image:
            return has_16_bits(image)
    except UnidentifiedImageError:
        return False


@exit_on_error
def main() -> None:
    args = parse_args()
    if not args.image.exists():
        raise UserError(f'{args.image} does not exist: pass an image, or a folder of images.')
    if args.out_dir.resolve() == args.image.resolve():
        raise UserError(f'--out-dir {args.out_dir} is the folder of the images: choose another.')
    paths = list_images(args.image) if args.image.is_dir() else [args.image]
    cfg = load_config(args.config)
    if args.score_thr is not None and cfg.default_scope == 'mmseg':
        raise UserError(f'--score-thr is for detectors, but config {args.config} is for mmseg: leave it out.')
    score_thr = 0.3 if args.score_thr is None else args.score_thr
    inferencer = build_inferencer(cfg, args.checkpoint, args.device)
    failed: dict[str, str] = {}
    found: dict[str, Prediction] = {}
    predictions = args.out_dir / ('label_maps' if cfg.default_scope == 'mmseg' else 'predictions.json')
    warned = False
    with held(args.out_dir):
        for path in track(paths, 'Painting'):
            try:
                painted, prediction = paint(inferencer, path, not args.no_labels, score_thr, args.max_pixels)
                if prediction.label_map is None:
                    found[path.name] = prediction  # also if it cannot be painted
                else:
                    predictions.mkdir(exist_ok=True)
                    write_image(predictions / f'{path.name}.png', prediction.label_map,
                                inferencer.model.dataset_meta.get('palette'))
                write_image(args.out_dir / f'{path.name}.png', painted)
                if not warned and loses_bits(path):
                    say(f'warning: {path} {LOSES_BITS}; this warning is printed once.')
                    warned = True
            except UserError as error:
                failed[path.name] = sentence(error)
            except OSError as error:
                failed[path.name] = (f'what belongs to image {path} cannot be written ({error.strerror}): give the '
                                     'image another name, or choose another --out-dir.')
        if found:
            write_text(predictions, json.dumps(to_coco(found)))
    say(f'{len(paths) - len(failed)} of {len(paths)} images painted in {args.out_dir}; predictions: {predictions}',
        *failed.values())
    if failed:
        raise UserError(f'{len(failed)} of {len(paths)} images are not painted ({", ".join(failed)}): repair, scale or '
                        'remove them (--max-pixels allows larger ones; a segmentor then needs 4 bytes for each class '
                        'at each pixel).')

