"""Paints predictions of a detector or segmentor on images, or on the frames of a video or camera, and writes them.

The painted street.jpg is street.png in the output folder; if street.png is another image, a line names its file. Images
of 'in/**/*' keep their folders below in/: a/street.png. Frames are clip.mp4_000001.png, and so are pages of a TIFF and
frames of a GIF. A detector also writes predictions.json, in COCO's layout with a score for each box, also for those
that are not painted. A segmentor also writes label_maps/street.png, with the number of a class at each pixel, from 0.
Ctrl-C ends a camera.

Without a config and a checkpoint, it uses the model in demo/nuclei of a clone, which finds nuclei of cells in
microscope images.
"""
import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError
from rich.progress import Progress

from openmmlab_tools.cli import command_parser
from openmmlab_tools.data.scales import TileScale
from openmmlab_tools.errors import UserError, say, sentence
from openmmlab_tools.files import IMAGE_SUFFIXES, held, unique_name, write_image, write_text
from openmmlab_tools.pictures.images import LOSES_BITS, MAX_PIXELS, TOO_LARGE, has_16_bits
from openmmlab_tools.pictures.prediction import SCORE_THR, Prediction, least_scores, to_coco
from openmmlab_tools.predict.options import check_options
from openmmlab_tools.predict.sources import VIDEO_SUFFIXES, BrokenVideo, Named, images_of, pages_of, root_of

NUCLEI = Path(__file__).parents[2] / 'demo/nuclei'  # only in a clone

LABEL_MAPS, PREDICTIONS = 'label_maps', 'predictions.json'


def parse_args() -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('image', help=f'image file, folder with images ({", ".join(IMAGE_SUFFIXES)}), pattern in '
                        f"quotes ('a/**/*.png'), video ({', '.join(VIDEO_SUFFIXES)}), number of a camera, or address")
    parser.add_argument('config', nargs='?', help='config file of mmdet or mmseg (default: that of demo/nuclei)')
    parser.add_argument('checkpoint', nargs='?', help='file or URL')
    parser.add_argument('--out-dir', default='outputs',
                        help='folder of the painted images and the predictions (default: %(default)s)')
    parser.add_argument('--no-labels', action='store_true', help='paint without names and scores')
    parser.add_argument('--urls', action='store_true', help='fetch the image if it is an address')
    parser.add_argument('--score-thr', type=score, action='append', metavar='[CLASS=]SCORE',
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
    parser.add_argument('--tile-scale', type=tile_scale, default='train', metavar='SCALE',
                        help='show tiles, and images that are not larger, at the scale of training (train), as the '
                        'config shows images of their size (config), or at a factor (default: %(default)s)')
    parser.add_argument('--device', help='device such as cpu or cuda:0 (default: a GPU if there is one)')
    args = parser.parse_args()
    if args.config is None:
        if not NUCLEI.is_dir():
            parser.error('the model of demo/nuclei is only in a clone: pass a config and a checkpoint.')
        args.config, args.checkpoint = str(NUCLEI / 'config.py'), str(NUCLEI / 'model.safetensors')
    elif args.checkpoint is None:
        parser.error(f'config {args.config} has no checkpoint: pass both, or none of them.')
    return args


def tile_scale(text: str) -> TileScale:
    """Returns 'train', 'config' or a factor."""
    return text if text in ('train', 'config') else float(text)  # type: ignore[return-value]


def score(text: str) -> tuple[str, float]:
    """Returns a class, '' for all, and its score, from `[CLASS=]SCORE`; a class may have an equals sign."""
    name, _, value = text.rpartition('=')
    return name, float(value)


def open_images(args: argparse.Namespace) -> Iterable[Named]:
    """Returns the images that the arguments name; a UserError if what is written could replace them."""
    source, out = Path(args.image), Path(args.out_dir)
    is_there = source.exists()
    images = images_of(int(args.image) if args.image.isdecimal() and not is_there else args.image, args.urls)
    if out.resolve() == (source if is_there else root_of(args.image)).resolve():
        raise UserError(f'--out-dir {out} is the folder of the images: choose another.')
    return images


@dataclass
class Results:
    """Predicts images and writes what is found into a folder."""
    folder: Path
    predictions: Path  # the folder of label maps, or else the file of boxes
    is_plain: bool  # whether images are read as 8 bits; a warning names the first that loses bits
    run: Callable[[Named], Iterator[Prediction]]
    plot: Callable[[Prediction], np.ndarray]
    names: set[str] = field(default_factory=set)
    painted: set[str] = field(default_factory=set)  # names of files, without their suffix
    failed: dict[str, str] = field(default_factory=dict)
    found: dict[str, Prediction] = field(default_factory=dict)
    written: set[Path] = field(default_factory=set)
    has_warned: bool = False

    def without_faults(self, images: Iterable[Named]) -> Iterator[Named]:
        """Yields images, and keeps the faults of videos, after which others follow."""
        left = iter(images)
        while True:
            try:
                yield next(left)
            except StopIteration:
                return
            except BrokenVideo as error:
                self.failed[unique_name(error.name, self.names)] = sentence(error)

    def add(self, named: Named) -> None:
        """Predicts and writes each page of an image, and keeps the faults."""
        try:
            for page in pages_of(named, self.is_plain):
                name = unique_name(page.name, self.names)
                try:
                    self._add(name, page)
                except UserError as error:
                    self.failed[name] = sentence(error)
                except OSError as error:
                    shown = page.name if isinstance(page.image, np.ndarray) else page.image
                    self.failed[name] = (f'what belongs to image {shown} cannot be written ({error.strerror}): give '
                                         'the image another name, or choose another --out-dir.')
        except UserError as error:  # the file cannot be opened, or a page of it
            self.failed[unique_name(named.name, self.names)] = sentence(error)

    def _add(self, name: str, page: Named) -> None:
        if {LABEL_MAPS, '..'} & {*Path(name).parts[:-1]}:  # it could replace a label map, or leave the folder
            raise UserError(f'image {name} can have no such place in {self.folder}: name its folder alone.')
        if isinstance(page.image, Path) and self.folder.resolve() in page.image.resolve().parents:
            raise UserError(f'image {page.image} is in --out-dir: choose a folder beside those of the images.')
        prediction, = self.run(page)
        painted = name[:-len(suffix)] if (suffix := Path(name).suffix).lower() in IMAGE_SUFFIXES else name
        if painted in self.painted:
            painted = unique_name(name, self.painted)
            say(f'warning: image {name} is painted as {painted}.png, because another image has the same name.')
        self.painted.add(painted)
        if prediction.label_map is None:
            self.found[name] = replace(prediction, image=None)  # also if it cannot be painted
        else:
            self._write(self.predictions / f'{painted}.png', prediction.label_map, prediction.palette)
        self._write(self.folder / f'{painted}.png', self.plot(prediction))
        if self.is_plain and not self.has_warned and isinstance(page.image, Path):
            with suppress(UnidentifiedImageError), Image.open(page.image) as image:
                if has_16_bits(image):
                    say(f'warning: {page.image} {LOSES_BITS}; this warning is printed once.')
                    self.has_warned = True

    def _write(self, path: Path, pixels: np.ndarray, palette: Any = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_image(path, pixels, palette)
        self.written.add(path)

    def finish(self) -> None:
        """Writes the boxes, and tells of files that could be taken for those of this run."""
        if self.predictions.name == PREDICTIONS:
            write_text(self.predictions, json.dumps(to_coco(self.found)))
            self.written.add(self.predictions)
        others = sorted({*self.folder.rglob('*.png'), *self.folder.glob(PREDICTIONS)} - self.written)
        if others:
            say(f'warning: {self.folder} also has {len(others)} files that are not of this run, such as {others[0]}: '
                'choose a new --out-dir to keep runs apart.')


def run(args: argparse.Namespace) -> None:
    from openmmlab_tools.engine.console import readable_console  # which --help does not need, as below
    with readable_console():
        predict(args)


def predict(args: argparse.Namespace) -> None:
    """Paints predictions on images; a UserError at the end names those without."""
    from openmmlab_tools.engine import load_config
    from openmmlab_tools.predict.predicting import build_inferencer, infer
    scores = dict(args.score_thr or ())
    check_options(score_thr=scores, tile=args.tile, overlap=args.overlap, tile_scale=args.tile_scale,
                  max_pixels=args.max_pixels)
    images, folder = open_images(args), Path(args.out_dir)
    cfg = load_config(args.config)
    if scores and cfg.default_scope == 'mmseg':
        raise UserError(f'--score-thr is for detectors, but config {args.config} is for mmseg: leave it out.')
    inferencer = build_inferencer(cfg, args.checkpoint, args.device)
    known = inferencer.score_thr
    score_thr = scores if '' in scores else {**(known if isinstance(known, Mapping) else {'': known}), **scores}
    least_scores(score_thr, inferencer.model.dataset_meta['classes'])  # which refuses names that it does not know
    with held(folder), Progress(disable=not sys.stdout.isatty()) as progress:
        in_tiles = progress.add_task('Tiles', visible=False)

        def tell(done: int, count: int) -> None:
            progress.update(in_tiles, completed=done, total=count, visible=done < count)

        results = Results(
            folder, folder / (LABEL_MAPS if cfg.default_scope == 'mmseg' else PREDICTIONS), not inferencer.bands_loader,
            lambda page: infer(
                inferencer, page, tile=args.tile, overlap=args.overlap, tile_scale=args.tile_scale,
                max_pixels=args.max_pixels, tell=tell),
            lambda found: found.plot(score_thr, not args.no_labels))
        try:
            total = len(images) if isinstance(images, list) else None
            for named in progress.track(results.without_faults(images), total, description='Painting'):
                results.add(named)
        finally:  # also if a camera is interrupted, or a video breaks off
            results.finish()
    count, failed = len(results.names), results.failed
    say(f'{count - len(failed)} of {count} images painted in {folder}; predictions: {results.predictions}',
        *failed.values())
    if failed:
        larger = (' (--tile 1024 predicts large ones in tiles; a --max-pixels above '
                  f'{args.max_pixels} allows larger ones, for which a segmentor needs 4 bytes a class and pixel)')
        raise UserError(f'{len(failed)} of {count} images are not painted ({", ".join(failed)}): repair, scale or '
                        f'remove them{larger if any(TOO_LARGE in one for one in failed.values()) else ""}.')
