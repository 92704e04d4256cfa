"""Paints predictions of a detector or segmentor on images, or on the frames of a video or camera, and writes them.

The painted street.jpg is street.jpg.png in the output folder, so that it differs from that of street.png. The second
image of a name gets a number, street.jpg_2.png; frames are clip.mp4_000001.png. A detector also writes
predictions.json, in COCO's layout with a score for each box, also for those that are not painted. A segmentor also
writes label_maps/street.jpg.png, with the number of a class at each pixel, from 0. Ctrl-C ends a camera.

Without a config and a checkpoint, it uses the model in demo/nuclei of a clone, which finds nuclei of cells in
microscope images.
"""
import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError
from rich.progress import Progress

from openmmlab_runs.cli import command_parser
from openmmlab_runs.data.findings import LOSES_BITS, has_16_bits
from openmmlab_runs.engine import load_config
from openmmlab_runs.errors import UserError, exit_on_error, say, sentence
from openmmlab_runs.files import IMAGE_SUFFIXES, held, unique_name, write_image, write_text
from openmmlab_runs.images import MAX_PIXELS
from openmmlab_runs.predicting import build_inferencer, paint
from openmmlab_runs.prediction import SCORE_THR, Prediction, ScoreThr, least_scores, to_coco
from openmmlab_runs.sources import VIDEO_SUFFIXES, images_of
from openmmlab_runs.tiles import make_tiling

NUCLEI = Path(__file__).parents[2] / 'demo/nuclei'  # only in a clone


def parse_args() -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('image', help=f'image file, folder with images ({", ".join(IMAGE_SUFFIXES)}), pattern in '
                        f"quotes ('a/**/*.png'), video ({', '.join(VIDEO_SUFFIXES)}), number of a camera, or address")
    parser.add_argument('config', nargs='?', help='config file of mmdet or mmseg (default: that of demo/nuclei)')
    parser.add_argument('checkpoint', nargs='?', help='file or URL')
    parser.add_argument('--out-dir', type=Path, default=Path('outputs'),
                        help='folder of the painted images and the predictions (default: %(default)s)')
    parser.add_argument('--no-labels', action='store_true', help='paint without names and scores')
    parser.add_argument('--urls', action='store_true', help='fetch the image if it is an address')
    parser.add_argument('--score-thr', type=score_of, action='append', metavar='[CLASS=]SCORE',
                        help='paint only boxes and masks with a score above this; may be given once for each class; '
                        'detectors only (default: the best scores of a test of the checkpoint, in thresholds.json '
                        f'beside it or in the work dir, or else {SCORE_THR})')
    parser.add_argument('--max-pixels', type=int, default=MAX_PIXELS, metavar='NUMBER',
                        help='leave out images with more pixels, which take much memory and time (default: '
                             '%(default)s)')
    parser.add_argument('--tile', type=int, metavar='SIDE',
                        help='predict images that are wider or higher in tiles of this side, in pixels, also those '
                             'over --max-pixels')
    parser.add_argument('--overlap', type=int, metavar='PIXELS',
                        help='how much tiles overlap: more than the largest object (default: a quarter of a tile)')
    parser.add_argument('--device', help='device such as cpu or cuda:0 (default: a GPU if there is one)')
    args = parser.parse_args()
    if args.config is None:
        if not NUCLEI.is_dir():
            parser.error('the model of demo/nuclei is only in a clone: pass a config and a checkpoint.')
        args.config, args.checkpoint = str(NUCLEI / 'config.py'), str(NUCLEI / 'model.safetensors')
    elif args.checkpoint is None:
        parser.error(f'config {args.config} has no checkpoint: pass both, or none of them.')
    return args


def score_of(text: str) -> tuple[str, float]:
    """Returns a class, '' for all, and its score, from `[CLASS=]SCORE`; a class may have an equals sign."""
    name, _, score = text.rpartition('=')
    return name, float(score)


def to_score_thr(given: list[tuple[str, float]], classes: tuple[str, ...], default: ScoreThr) -> ScoreThr:
    """Returns scores of classes, which the model must have; the others have the score without a class, or the default.
    """
    scores = dict(given)
    others = scores.pop('', default)
    if not scores:
        return others
    score_thr = {**(others if isinstance(others, Mapping) else dict.fromkeys(classes, others)), **scores}
    least_scores(score_thr, classes)
    return score_thr


def loses_bits(path: str | Path) -> bool:
    """Returns whether an image has 16 bits per channel; False if Pillow does not know its format."""
    try:
        with Image.open(path) as image:
            return has_16_bits(image)
    except UnidentifiedImageError:
        return False


@exit_on_error
def main() -> None:
    args = parse_args()
    is_camera = args.image.isdecimal() and not Path(args.image).exists()
    images = images_of(int(args.image) if is_camera else args.image, args.urls)
    tiling = make_tiling(args.tile, args.overlap)
    if args.out_dir.resolve() == Path(args.image).resolve():
        raise UserError(f'--out-dir {args.out_dir} is the folder of the images: choose another.')
    cfg = load_config(args.config)
    if args.score_thr and cfg.default_scope == 'mmseg':
        raise UserError(f'--score-thr is for detectors, but config {args.config} is for mmseg: leave it out.')
    inferencer = build_inferencer(cfg, args.checkpoint, args.device)
    score_thr = to_score_thr(args.score_thr or [], tuple(inferencer.model.dataset_meta['classes']),
                             inferencer.score_thr)
    names: set[str] = set()
    failed: dict[str, str] = {}
    found: dict[str, Prediction] = {}
    predictions = args.out_dir / ('label_maps' if cfg.default_scope == 'mmseg' else 'predictions.json')
    warned = False
    with held(args.out_dir), Progress() as progress:
        in_tiles = progress.add_task('Tiles', visible=False)

        def tell(done: int, count: int) -> None:
            progress.update(in_tiles, completed=done, total=count, visible=done < count)

        try:
            for name, image in progress.track(images, description='Painting'):
                unique = unique_name(name, names)
                try:
                    painted, prediction = paint(inferencer, image, not args.no_labels, score_thr, args.max_pixels,
                                                tiling, tell)
                    if prediction.label_map is None:
                        found[unique] = replace(prediction, image=None)  # also if it cannot be painted
                    else:
                        predictions.mkdir(exist_ok=True)
                        write_image(predictions / f'{unique}.png', prediction.label_map, prediction.palette)
                    write_image(args.out_dir / f'{unique}.png', painted)
                    if not (warned or inferencer.bands_loader or isinstance(image, np.ndarray)) and loses_bits(image):
                        say(f'warning: {image} {LOSES_BITS}; this warning is printed once.')
                        warned = True
                except UserError as error:
                    failed[unique] = sentence(error)
                except OSError as error:
                    shown = name if isinstance(image, np.ndarray) else image
                    failed[unique] = (f'what belongs to image {shown} cannot be written ({error.strerror}): give the '
                                      'image another name, or choose another --out-dir.')
        finally:  # also if a camera is interrupted, or a video breaks off
            if found:
                write_text(predictions, json.dumps(to_coco(found)))
    count = len(names)
    say(f'{count - len(failed)} of {count} images painted in {args.out_dir}; predictions: {predictions}',
        *failed.values())
    if failed:
        raise UserError(f'{len(failed)} of {count} images are not painted ({", ".join(failed)}): repair, scale or '
                        'remove them (--tile 1024 predicts large ones in tiles; --max-pixels allows larger ones, for '
                        'which a segmentor needs 4 bytes for each class at each pixel).')
