"""Predicts and paints boxes, masks and label maps of any images, with the inferencers of mmdet and mmseg."""
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.infer import BaseInferencer
from mmengine.logging import print_log

from openmmlab_runs.argument_checks import check_flag, check_number, check_path
from openmmlab_runs.checkpoints.comparing import check_fits
from openmmlab_runs.checkpoints.loading import bands_loader, build_model
from openmmlab_runs.checkpoints.reading import check_device, read_checkpoint, readable
from openmmlab_runs.data.datasets import build_unread, building
from openmmlab_runs.data.scales import Scales, TileScale
from openmmlab_runs.engine import load_config
from openmmlab_runs.engine.checks import trained_classes
from openmmlab_runs.engine.console import Output
from openmmlab_runs.errors import UserError, explain
from openmmlab_runs.evaluation.thresholds import find_thresholds
from openmmlab_runs.pictures.bands import read_header
from openmmlab_runs.pictures.images import MAX_PIXELS, check_pixels, read_image
from openmmlab_runs.pictures.load_bands import LoadBandsFromFile
from openmmlab_runs.registry import TRANSFORMS, in_scope

from .prediction import SCORE_THR, Prediction, ScoreThr, check_score_thr
from .sources import Picture, Source, images_of, pages_of
from .tiles import Tiling, join, make_tiling

INFERENCERS = {'mmdet': 'DetInferencer', 'mmseg': 'MMSegInferencer'}


@overload
def predict(images: Source, config: str | Path, checkpoint: str | Path, device: str | None = None,
            batch_size: int = 1, *, score_thr: ScoreThr | None = None, urls: bool = False,
            tile: int | None = None, overlap: int | None = None, tile_scale: TileScale = 'train',
            stream: Literal[False] = False) -> list[Prediction]: ...
@overload
def predict(images: Source, config: str | Path, checkpoint: str | Path, device: str | None = None,
            batch_size: int = 1, *, score_thr: ScoreThr | None = None, urls: bool = False,
            tile: int | None = None, overlap: int | None = None, tile_scale: TileScale = 'train',
            stream: Literal[True]) -> Iterator[Prediction]: ...
def predict(images: Source, config: str | Path, checkpoint: str | Path, device: str | None = None, batch_size: int = 1,
            *, score_thr: ScoreThr | None = None, urls: bool = False, tile: int | None = None,
            overlap: int | None = None, tile_scale: TileScale = 'train', stream: bool = False
            ) -> list[Prediction] | Iterator[Prediction]:
    """Predicts with a detector of mmdet or a segmentor of mmseg.

    For several calls with one model, call `build_inferencer` once, and `infer` for each. Threads take turns.

    Args:
        images: A path, a folder, a pattern, an address, a video, the number of a camera, an image of Pillow, an array,
            a tensor, or any number of them; see `openmmlab_runs.predict.sources.images_of`.
        config: The file that the model was trained with.
        checkpoint: Path or URL.
        device: A device such as 'cpu' or 'cuda:1'. Defaults to None: the one that mmengine finds.
        batch_size: How many images are predicted together. Defaults to 1.
        score_thr: Boxes with a score above it are returned; see `Prediction.above`. Defaults to None: all.
        urls: Whether to fetch images from addresses. Defaults to False.
        tile: Images that are wider or higher are predicted in overlapping tiles of this side, in pixels, so that memory
            does not grow with their size; see `openmmlab_runs.predict.tiles`. Defaults to None: as a whole.
        overlap: How many pixels neighbouring tiles have in common, at least: more than the largest object. Defaults to
            None: a quarter of `tile`.
        tile_scale: At which scale tiles, and images that are not larger than one, are shown: 'train' as whole images in
            training, 'config' as the config says for images of their size, or a factor. Defaults to 'train'.
        stream: Whether to return an iterator, which reads and predicts only what is asked for, such as the frames of a
            camera or of a long video. Defaults to False: a list.

    Raises:
        UserError: If the model cannot be built, or an image cannot be read or predicted.
    """
    check_flag('stream', stream)
    _check_options(batch_size, score_thr, tile, overlap, tile_scale)
    cfg = load_config(config)
    opened = images_of(images, urls, not bands_loader(cfg.get('test_dataloader')), endless=stream)
    found = infer(build_inferencer(cfg, checkpoint, device), opened, batch_size, score_thr, urls, tile, overlap,
                  tile_scale)
    return found if stream else list(found)


def _check_options(batch_size: int, score_thr: ScoreThr | None, tile: int | None, overlap: int | None,
                   tile_scale: TileScale) -> Tiling | None:
    """Raises a UserError for options of `predict` that do not fit, and returns the tiling that they mean."""
    check_number('batch_size', batch_size, 1)
    if score_thr is not None:
        check_score_thr(score_thr)
    return make_tiling(tile, overlap, tile_scale)


def build_inferencer(cfg: Config, checkpoint: str | Path, device: str | None = None) -> BaseInferencer:
    """Builds the inferencer of a config's library, without a progress bar; `cfg` from `load_config` is changed in
    place. Classes are named as in the checkpoint, or else as in the config's test dataset. The best scores of a test of
    the checkpoint, in `thresholds.json` beside it or in the work dir, become its attribute `score_thr`, which is told.

    Raises:
        UserError: If the config is for another library, the device cannot be used, or the checkpoint does not fit.
    """
    check_path('checkpoint', checkpoint)
    scope, device = cfg.default_scope, get_device() if device is None else device
    if scope not in INFERENCERS:
        raise UserError(f'config {cfg.filename} is for {scope}, but only predictions of {" and ".join(INFERENCERS)} '
                        'can be made here: run cpvt_mm test with --show-dir.')
    check_device('device', device)
    bands = bands_loader(cfg.get('test_dataloader'))
    loader = bands and TRANSFORMS.build(bands)
    if bands:  # the libraries' inferencers know mmcv's loader only, and get arrays instead
        bands.clear()
        bands['type'] = 'LoadImageFromFile'
    if cfg.get('visualizer'):
        cfg.visualizer.vis_backends = None  # only the caller writes files
    with in_scope(scope):
        content = read_checkpoint(checkpoint)
        # The inferencer would fail in other words, load the weights that fit, and ignore the others.
        check_fits(build_model(cfg), checkpoint, content)
        cls = getattr(importlib.import_module(f'{scope}.apis'), INFERENCERS[scope])
        with readable(checkpoint) as local, redirect_stdout(Output(sys.stdout)), building('test_dataloader'):
            inferencer = cls(cfg, local, device=device)
        inferencer.show_progress = False
        if not trained_classes(content):  # it would take those of COCO or of Cityscapes
            metainfo = build_unread(cfg.test_dataloader.dataset).metainfo
            # mmdet reads the one, mmseg the other.
            inferencer.visualizer.dataset_meta = inferencer.model.dataset_meta = {
                key: metainfo.get(key) for key in ('classes', 'palette')}
    inferencer.bands_loader = loader
    inferencer.scales = Scales(inferencer.pipeline.transforms, content.get('meta') or {}, cfg)
    take_sizes = getattr(inferencer.model.data_preprocessor, 'take_several_sizes', None)
    inferencer.takes_several_sizes = bool(take_sizes and take_sizes(inferencer.model))
    inferencer.score_thr = SCORE_THR
    if measured := find_thresholds((Path(checkpoint).parent, Path(cfg.work_dir)), inferencer.model):
        file, scores = measured
        known = trained_classes(dict(meta=dict(dataset_meta=inferencer.model.dataset_meta)))
        inferencer.score_thr = {name: score for name, score in scores.items() if name in known}
        print_log(f'Boxes are painted from the best score of their class in {file}, unless you give others.', 'current')
    return inferencer


class _Sized(NamedTuple):
    name: str
    image: Picture
    size: tuple[int, int]
    pixels: np.ndarray | None = None  # of a file that is read already


def infer(inferencer: BaseInferencer, images: Source, batch_size: int = 1, score_thr: ScoreThr | None = None,
          urls: bool = False, tile: int | None = None, overlap: int | None = None, tile_scale: TileScale = 'train'
          ) -> Iterator[Prediction]:
    """Yields the prediction of each image, in their order; see `predict`.

    Predictions do not depend on `batch_size`: images of several sizes are predicted together only if the model can do
    so without a difference (`padding='exact'`, a data preprocessor of cpvt_mm, and parts that
    `cpvt_mm.make_batch_invariant` knows), and else neighbours of one size.
    """
    tiling = _check_options(batch_size, score_thr, tile, overlap, tile_scale)
    loader = inferencer.bands_loader
    sized = (_Sized(*page, _size(page.image, loader)) for named in images_of(images, urls, loader is None)
             for page in pages_of(named, loader is None))

    def kind(one: _Sized) -> tuple[bool, tuple[int, int] | None]:
        is_large = tiling is not None and tiling.is_for(one.size)
        return is_large, None if inferencer.takes_several_sizes else one.size

    for (is_large, _), neighbours in groupby(sized, kind):
        while batch := [*islice(neighbours, batch_size)]:
            for found in (_run_tiles(inferencer, one, tiling, batch_size) for one in batch) if (
                    tiling and is_large) else _run(inferencer, batch, tiling):
                yield found if score_thr is None else found.above(score_thr)


def _size(image: Picture, loader: LoadBandsFromFile | None) -> tuple[int, int]:
    if isinstance(image, np.ndarray):
        return image.shape[:2]
    try:
        return read_header(image).size
    except UserError:
        if loader:
            raise
        return read_image(image).shape[:2]  # without the package that the header needs, or says why not


def _input(inferencer: BaseInferencer, one: _Sized) -> np.ndarray | str:
    """Returns the pixels of an image, BGR, or its path if the config's loader wants more, as a fourth channel."""
    if inferencer.bands_loader:
        return _pixels(inferencer, one)
    if isinstance(one.image, np.ndarray):
        return mmcv.rgb2bgr(one.image)
    loaders = [part.from_file for part in inferencer.pipeline.transforms if hasattr(part, 'from_file')]
    if any((loader.color_type, loader.imdecode_backend) != ('color', 'cv2') for loader in loaders):
        return str(one.image)
    return mmcv.rgb2bgr(_pixels(inferencer, one))


def _pixels(inferencer: BaseInferencer, one: _Sized) -> np.ndarray:
    """Returns the pixels of an image, given or read: RGB, uint8, or what the config's loader of bands makes of it."""
    if one.pixels is not None:
        return one.pixels
    if loader := inferencer.bands_loader:
        return loader.checked(one.image, one.name) if isinstance(one.image, np.ndarray) else loader.read(one.image)
    return one.image if isinstance(one.image, np.ndarray) else read_image(one.image)


def _run(inferencer: BaseInferencer, batch: Sequence[_Sized], tiling: Tiling | None = None) -> list[Prediction]:
    """Predicts a batch of images or tiles, of one size unless the model takes several."""
    inputs = [_input(inferencer, one) for one in batch]
    meta = inferencer.model.dataset_meta
    classes = tuple(trained_classes(dict(meta=dict(dataset_meta=meta))))
    try:
        with in_scope(inferencer.scope), inferencer.scales.of_tiles(tiling and tiling.scale, batch[0].size):
            found = inferencer(inputs, batch_size=len(inputs))['predictions']
        found = found if isinstance(found, list) else [found]  # mmseg returns a single image without a list
        return [replace(_to_prediction(result, one.size, classes), name=one.name, image=one.image,
                        palette=meta.get('palette'), score_thr=inferencer.score_thr)
                for result, one in zip(found, batch, strict=True)]
    except UserError:
        raise
    except Exception as error:  # models can raise any error, such as for a line of one pixel
        names = ', '.join(dict.fromkeys(
            f'of {one.size[0]} x {one.size[1]} pixels (height x width)' if isinstance(one.image, np.ndarray)
            else str(one.image) for one in batch))
        raise UserError(f'image {names} cannot be predicted ({explain(error)}): scale it, or leave '
                        'it out.') from error


def _run_tiles(inferencer: BaseInferencer, one: _Sized, tiling: Tiling, batch_size: int,
               tell: Callable[[int, int], object] = lambda done, count: None) -> Prediction:
    """Predicts a large image in tiles, `batch_size` at once; `tell` gets how many of how many are done."""
    pixels = _pixels(inferencer, one)
    tiles = tiling.tiles(one.size)
    parts: list[Prediction] = []
    for first in range(0, len(tiles), batch_size):
        batch = [pixels[tile.rows, tile.columns] for tile in tiles[first:first + batch_size]]
        parts += _run(inferencer, [_Sized(one.name, part, part.shape[:2]) for part in batch], tiling)
        tell(len(parts), len(tiles))
    return replace(join(parts, tiles, one.size), image=one.image)


def _to_prediction(found: Any, size: tuple[int, int], classes: tuple[str, ...]) -> Prediction:
    """Converts what the inferencer of mmseg (an array) or of mmdet (a dict of lists) returns for an image."""
    if isinstance(found, np.ndarray):
        return Prediction(size, classes, label_map=found.astype(np.min_scalar_type(int(found.max()))))
    return Prediction(size, classes, np.array(found['bboxes'], np.float32).reshape(-1, 4), np.array(
        found['labels'], np.int64), np.array(found['scores'], np.float32), found.get('masks'))


def paint(inferencer: BaseInferencer, image: Picture, labels: bool = True, score_thr: ScoreThr | None = None,
          max_pixels: int = MAX_PIXELS, tiling: Tiling | None = None,
          tell: Callable[[int, int], object] = lambda done, count: None) -> tuple[np.ndarray, Prediction]:
    """Paints the prediction on an image; returns `(H, W, 3)`, RGB, uint8, and the whole prediction.

    Args:
        inferencer: See `build_inferencer`.
        image: The path, or pixels as in `predict`.
        labels: Whether to write class names and scores, if they are legible on the image. Defaults to True.
        score_thr: Only boxes and masks with a score above it are painted; see `Prediction.above`. Defaults to
            None: that of `build_inferencer`.
        max_pixels: A file with more is a UserError, unless there is a tiling. Defaults to 16 million.
        tiling: How to predict images that are larger than a tile. Defaults to None: as a whole.
        tell: Is called with the number of tiles that are predicted, and of all. Defaults to nothing.
    """
    name, most = 'image' if isinstance(image, np.ndarray) else Path(image).name, None if tiling else max_pixels
    if inferencer.bands_loader and not isinstance(image, np.ndarray):
        check_pixels(read_header(image).size, image, most)
    pixels = _pixels(inferencer, _Sized(name, image, (0, 0))) if inferencer.bands_loader or isinstance(
        image, np.ndarray) else read_image(image, max_pixels=most)
    one = _Sized(name, image, pixels.shape[:2], pixels)
    if tiling and tiling.is_for(one.size):
        found = _run_tiles(inferencer, one, tiling, 1, tell)
    else:
        found, = _run(inferencer, [one], tiling)
    return replace(found, image=image if inferencer.bands_loader else pixels).plot(score_thr, labels), found
