"""Draws the predictions of a detector or segmentor on images, or on the frames of a video or camera.

The output folder contains street.png for street.jpg. If another image already has this name, a line names the file.
Images in 'in/**/*' keep their folders: a/street.png. Frames of a video or GIF and pages of a TIFF become
clip.mp4_000001.png and so on. A detector also writes predictions.json in COCO's format, with a score for each box, also
for boxes that are not drawn. A segmentor also writes label_maps/street.png, with the number of the class at each pixel,
from 0. To end a camera, press Ctrl-C.

Without a config and a checkpoint, the command uses the model in demo/nuclei of a clone, which finds nuclei in
microscope images.
"""
import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from openmmlab_tools.choices import IMAGE_SUFFIXES, MAX_PIXELS, SCORE_THR, VIDEO_SUFFIXES
from openmmlab_tools.cli import command_parser
from openmmlab_tools.errors import UserError, say

NUCLEI = Path(__file__).parents[2] / 'demo/nuclei'  # only in a clone

def parse_args() -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('image', help=f'image file, folder with images ({", ".join(IMAGE_SUFFIXES)}), pattern in '
                        f"quotes ('a/**/*.png'), video ({', '.join(VIDEO_SUFFIXES)}), number of a camera, or address")
    parser.add_argument('config', nargs='?', help='config file of mmdet or mmseg (default: the model in demo/nuclei)')
    parser.add_argument('checkpoint', nargs='?', help='file or URL; or an exported .onnx or .pt2 file')
    parser.add_argument('--out-dir', default='outputs',
                        help='folder for the pictures and the predictions (default: %(default)s)')
    parser.add_argument('--no-labels', action='store_true', help='draw no names and scores')
    parser.add_argument('--urls', action='store_true', help='download the image if it is an address')
    parser.add_argument('--score-thr', type=score, action='append', metavar='[CLASS=]SCORE',
                        help='draw only boxes and masks with a score above this; you can pass it several times, '
                        'also for single classes; detectors only (default: the best scores that a test of this '
                        f'checkpoint found, or {SCORE_THR} without a test)')
    parser.add_argument('--max-pixels', type=int, default=MAX_PIXELS, metavar='NUMBER',
                        help='skip images with more pixels, because they need much memory and time; with --tile, '
                             'draw them smaller (default: %(default)s)')
    parser.add_argument('--tile', type=int, metavar='SIDE',
                        help='split images that are wider or higher into tiles with this side, in pixels; also '
                             'images above --max-pixels')
    parser.add_argument('--overlap', type=int, metavar='PIXELS',
                        help='overlap of tiles in pixels; should be larger than your largest object (default: a '
                        'quarter of a tile)')
    parser.add_argument('--tile-scale', type=tile_scale, default='train', metavar='SCALE',
                        help='magnification of tiles and of smaller images: as in training (train), as the config '
                        'resizes images of their size (config), or a factor (default: %(default)s)')
    parser.add_argument('--device', help='device such as cpu or cuda:0 (default: a GPU if there is one)')
    args = parser.parse_args()
    if args.config is None:
        if not NUCLEI.is_dir():
            parser.error('the model of demo/nuclei is only in a clone: pass a config and a checkpoint.')
        args.config, args.checkpoint = str(NUCLEI / 'config.py'), str(NUCLEI / 'model.safetensors')
    elif args.checkpoint is None:
        parser.error(f'config {args.config} has no checkpoint: pass a config and a checkpoint, or neither.')
    return args


def tile_scale(text: str) -> float | str:
    """Returns 'train', 'config' or a factor."""
    return text if text in ('train', 'config') else float(text)


def score(text: str) -> tuple[str, float]:
    """Returns a class, '' for all, and its score, from `[CLASS=]SCORE`; a class may have an equals sign."""
    name, _, value = text.rpartition('=')
    return name, float(value)


def run(args: argparse.Namespace) -> None:
    from openmmlab_tools.engine.console import readable_console
    with readable_console():
        predict(args)


def predict(args: argparse.Namespace) -> None:
    """Paints predictions on images; a UserError at the end names those without."""
    from rich.progress import Progress

    from openmmlab_tools.engine import load_config
    from openmmlab_tools.files import held
    from openmmlab_tools.pictures.images import TOO_LARGE
    from openmmlab_tools.pictures.prediction import least_scores
    from openmmlab_tools.predict.options import check_options
    from openmmlab_tools.predict.predicting import build_inferencer, infer
    from openmmlab_tools.predict.reduced import reduced
    from openmmlab_tools.predict.results import LABEL_MAPS, PREDICTIONS, Results, open_images
    scores = dict(args.score_thr or ())
    check_options(score_thr=scores, tile=args.tile, overlap=args.overlap, tile_scale=args.tile_scale,
                  max_pixels=args.max_pixels)
    folder = Path(args.out_dir)
    images = open_images(args.image, folder, args.urls)
    cfg = load_config(args.config)
    if scores and cfg.default_scope == 'mmseg':
        raise UserError(f'--score-thr is for detectors, but config {args.config} is for mmseg: leave it out.')
    inferencer = build_inferencer(cfg, args.checkpoint, args.device)
    known = inferencer.score_thr
    score_thr = scores if '' in scores else {**(known if isinstance(known, Mapping) else {'': known}), **scores}
    least_scores(score_thr, inferencer.model.dataset_meta['classes'])  # raises a UserError for unknown names
    with held(folder), Progress(disable=not sys.stdout.isatty()) as progress:
        in_tiles = progress.add_task('Tiles', visible=False)

        def tell(done: int, count: int) -> None:
            progress.update(in_tiles, completed=done, total=count, visible=done < count)

        results = Results(
            folder, folder / (LABEL_MAPS if cfg.default_scope == 'mmseg' else PREDICTIONS), not inferencer.bands_loader,
            lambda page: infer(
                inferencer, page, tile=args.tile, overlap=args.overlap, tile_scale=args.tile_scale,
                max_pixels=args.max_pixels, tell=tell),
            lambda prediction, regions: reduced(prediction, args.max_pixels, regions).plot(
                score_thr, not args.no_labels),
            args.tile is not None)
        try:
            total = len(images) if isinstance(images, list) else None
            for named in progress.track(results.without_faults(images), total, description='Painting'):
                results.add(named)
        finally:  # also if a camera is interrupted, or a video breaks off
            results.finish()
    count, failed = len(results.names), results.failed
    say(f'Drew {count - len(failed)} of {count} images in {folder}; predictions: {results.predictions}',
        *failed.values())
    if failed:
        larger = (' (pass --tile 1024 to predict large images in tiles, or a --max-pixels above '
                  f'{args.max_pixels}; without tiles, a segmentor needs 4 bytes for each class and pixel)')
        raise UserError(f'{len(failed)} of {count} images are not drawn ({", ".join(failed)}): repair, scale or '
                        f'remove them{larger if any(TOO_LARGE in fault for fault in failed.values()) else ""}.')
