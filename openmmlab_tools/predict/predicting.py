"""Predicts boxes, masks and label maps of any images, with the inferencers of mmdet and mmseg."""
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, overload

import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.infer import BaseInferencer
from torch import nn

from openmmlab_tools.checkpoints.fitting import check_fits
from openmmlab_tools.checkpoints.loading import bands_loader, build_model
from openmmlab_tools.checkpoints.reading import check_device
from openmmlab_tools.choices import MAX_PIXELS
from openmmlab_tools.data.datasets import build_unread
from openmmlab_tools.data.scales import Scales, TileScale
from openmmlab_tools.engine import load_config
from openmmlab_tools.engine.checks import trained_classes
from openmmlab_tools.errors import UserError, as_sentence, show
from openmmlab_tools.evaluation.thresholds import find_thresholds
from openmmlab_tools.exported.opening import open_weights
from openmmlab_tools.pictures.bands import read_header
from openmmlab_tools.pictures.images import check_pixels, read_image
from openmmlab_tools.pictures.load_bands import LoadBandsFromFile
from openmmlab_tools.pictures.prediction import SCORE_THR, Picture, Prediction, ScoreThr, of_sample
from openmmlab_tools.registry import TRANSFORMS, in_scope

from .options import check_options
from .regions import BYTES, Regions, open_regions
from .sources import Named, Source, images_of, pages_of
from .tiles import Tiling, join

Tell: TypeAlias = Callable[[int, int], object]
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
    """Predicts images with a detector of mmdet or a segmentor of mmseg.

    To predict several times with one model, call `build_inferencer` once, and then `infer`. You can call this function
    in several threads; one thread at a time predicts.

    Args:
        images: A path, a folder, a pattern, an address, a video, the number of a camera, an image of Pillow, an array,
            a tensor, or an iterable of these; see `openmmlab_tools.predict.sources.images_of`.
        config: The config file that the model was trained with.
        checkpoint: Path or URL, or an exported file.
        device: A device such as 'cpu' or 'cuda:1'. Defaults to None: the one that mmengine finds.
        batch_size: The number of images in a batch. Defaults to 1.
        score_thr: Only boxes with a score above this value are returned; see `Prediction.above`. Defaults to None: all
            boxes.
        urls: Whether to fetch images from addresses. Defaults to False.
        tile: The side of a tile in pixels. Larger images are predicted in overlapping tiles, so that memory does not
            grow with the image; see `openmmlab_tools.predict.tiles`. Defaults to None: no tiles.
        overlap: The smallest overlap of neighbouring tiles, in pixels. Choose more than the size of the largest object.
            Defaults to None: a quarter of `tile`.
        tile_scale: The scale at which the model gets tiles, and images smaller than a tile: 'train' for the scale of
            whole images in training, 'config' for the config's scale for images with the size of a tile, or a factor.
            Defaults to 'train'.
        stream: Whether to return an iterator. It reads and predicts an image when you ask for the image. Use it for
            cameras and long videos. Defaults to False: returns a list.

    Raises:
        UserError: If the model cannot be built, or an image cannot be read or predicted.
    """
    check_options(batch_size, score_thr, urls, tile, overlap, tile_scale, stream=stream)
    cfg = load_config(config)
    opened = images_of(images, urls, not bands_loader(cfg.get('test_dataloader')), endless=stream)
    predictions = infer(build_inferencer(cfg, checkpoint, device), opened, batch_size, score_thr, tile=tile,
                        overlap=overlap, tile_scale=tile_scale)
    return predictions if stream else list(predictions)


def build_inferencer(cfg: Config, checkpoint: str | Path, device: str | None = None) -> BaseInferencer:
    """Builds an inferencer of mmdet or mmseg, without a progress bar. Changes `cfg`, from `load_config`, in place.

    The names of classes come from the checkpoint, or else from the config's test dataset. If `thresholds.json` from a
    test of the checkpoint is in the checkpoint's folder or in the work dir, its scores become the attribute
    `score_thr`, and a note says so.

    Raises:
        UserError: If the config is for another library, the device cannot be used, or the checkpoint does not fit.
    """
    scope, device = cfg.default_scope, get_device() if device is None else device
    if scope not in INFERENCERS:
        raise UserError(f'config {cfg.filename} is for {scope}, but only predictions of {" and ".join(INFERENCERS)} '
                        'can be made here: run a test with --show-dir.')
    check_device('device', device)
    bands = bands_loader(cfg.get('test_dataloader'))
    loader = bands and TRANSFORMS.build(bands)
    if bands:  # the libraries' inferencers support only mmcv's loader, so we pass arrays
        bands.clear()
        bands['type'] = 'LoadImageFromFile'
    if cfg.get('visualizer'):
        cfg.visualizer.vis_backends = None  # only the caller writes files
    opened = open_weights(cfg, checkpoint)

    def init_model(self: BaseInferencer, cfg: Config, weights: None, device: str) -> nn.Module:
        model = build_model(cfg)
        check_fits(model, opened)  # mmengine would load what fits, and ignore the rest
        model.cfg = cfg
        content = opened.as_mmengine_has_it()
        if not trained_classes(opened.meta):  # else mmengine would assume the classes of COCO or Cityscapes
            metainfo = build_unread(cfg.test_dataloader.dataset).metainfo
            content['meta'] = dict(opened.meta, dataset_meta={key: metainfo.get(key) for key in ('classes', 'palette')})
        self._load_weights_to_model(model, content, cfg)
        return model.to(device).eval()

    with in_scope(scope), as_sentence('test_dataloader of the config cannot be built', 'correct it', OSError):
        cls = getattr(importlib.import_module(f'{scope}.apis'), INFERENCERS[scope])
        inferencer = type(cls.__name__, (cls,), dict(_init_model=init_model))(cfg, device=device)
    inferencer.bands_loader = loader
    inferencer.scales = Scales(inferencer.pipeline.transforms, opened.meta, cfg)
    take_sizes = getattr(inferencer.model.data_preprocessor, 'take_several_sizes', None)
    inferencer.takes_several_sizes = bool(take_sizes and take_sizes(inferencer.model))
    inferencer.score_thr = _best_scores((Path(checkpoint).parent, Path(cfg.work_dir)), inferencer.model)
    return inferencer


def _best_scores(folders: Iterable[Path], model: nn.Module) -> ScoreThr:
    """Returns the scores that a test of the weights chose, and prints for which purpose; 0.3 if no folder has them."""
    measured = find_thresholds(folders, model)
    if measured is None:
        return SCORE_THR
    show(f'Only boxes are drawn {measured.told}. To change this, pass --score-thr.')
    known = trained_classes(dict(dataset_meta=model.dataset_meta))
    return {name: score for name, score in measured.scores.items() if name in known}


class _Sized(NamedTuple):
    name: str
    image: Picture
    size: tuple[int, int]
    regions: Regions | None = None


def infer(inferencer: BaseInferencer, images: Source, batch_size: int = 1, score_thr: ScoreThr | None = None,
          urls: bool = False, tile: int | None = None, overlap: int | None = None, tile_scale: TileScale = 'train',
          max_pixels: int | None = None, tell: Tell = lambda done, count: None) -> Iterator[Prediction]:
    """Yields the prediction of each image, in the order of the images. `predict` describes most arguments.

    Predictions do not depend on `batch_size`. A batch contains images of several sizes only if the data preprocessor
    has prepared the model for this (`take_several_sizes`). Otherwise, a batch contains consecutive images of one size.

    Args:
        inferencer: From `build_inferencer`.
        max_pixels: The most pixels of an image that is predicted without tiles. Defaults to None: no limit.
        tell: Called with the number of predicted tiles of an image, and the number of its tiles. Defaults to nothing.

    Raises:
        UserError: If an image cannot be read or predicted, or is too large.
    """
    tiling = check_options(batch_size, score_thr, urls, tile, overlap, tile_scale, max_pixels)
    opened = images_of(images, urls, inferencer.bands_loader is None)
    return _infer(inferencer, opened, batch_size, score_thr, tiling, None if tiling else max_pixels, tell)


def _infer(inferencer: BaseInferencer, images: Iterable[Named], batch_size: int, score_thr: ScoreThr | None,
           tiling: Tiling | None, max_pixels: int | None, tell: Tell) -> Iterator[Prediction]:
    sized = (sized for named in images for sized in _sized(inferencer, named, tiling, max_pixels))

    def kind(image: _Sized) -> tuple[bool, tuple[int, int] | None]:
        is_large = tiling is not None and max(image.size) > tiling.side
        return is_large, None if inferencer.takes_several_sizes else image.size

    for (is_large, _), neighbours in groupby(sized, kind):
        while batch := [*islice(neighbours, batch_size)]:
            for prediction in (_run_tiles(inferencer, image, tiling, batch_size, tell) for image in batch) if (
                    tiling and is_large) else _run(inferencer, batch, tiling):
                yield prediction if score_thr is None else prediction.above(score_thr)


def _sized(inferencer: BaseInferencer, named: Named, tiling: Tiling | None, max_pixels: int | None) -> Iterator[_Sized]:
    """Yields the pages of an image and their sizes; a file whose regions can be read is not opened as a whole."""
    loader = inferencer.bands_loader
    if tiling and not loader and (regions := open_regions(named.image)):
        yield _Sized(named.name, regions.path, regions.size, regions)
    else:
        for name, image in pages_of(named, loader is None, max_pixels):
            assert not isinstance(image, Regions)  # they are opened for tiles only
            yield _Sized(name, image, _size(image, loader, max_pixels))


def _size(image: Picture, loader: LoadBandsFromFile | None, max_pixels: int | None) -> tuple[int, int]:
    if isinstance(image, np.ndarray):
        return image.shape[:2]
    try:
        size = read_header(image).size
    except UserError:
        if loader:
            raise
        return read_image(image, max_pixels=max_pixels).shape[:2]  # without a package of the header, or says why not
    check_pixels(size, image, max_pixels)
    return size


def _pixels(inferencer: BaseInferencer, sized: _Sized) -> np.ndarray:
    """Returns the pixels of an image: RGB, uint8, or the result of the config's LoadBandsFromFile."""
    if loader := inferencer.bands_loader:
        is_array = isinstance(sized.image, np.ndarray)
        return loader.checked(sized.image, sized.name) if is_array else loader.read(sized.image)
    return sized.image if isinstance(sized.image, np.ndarray) else read_image(sized.image)


def _input(inferencer: BaseInferencer, sized: _Sized) -> np.ndarray | str:
    """Returns the pixels of an image, BGR, or its path if the config's loader wants more, as a fourth channel."""
    loaders = [part.from_file for part in inferencer.pipeline.transforms if hasattr(part, 'from_file')]
    if inferencer.bands_loader:
        return _pixels(inferencer, sized)
    if not isinstance(sized.image, np.ndarray) and any(
            (loader.color_type, loader.imdecode_backend) != ('color', 'cv2') for loader in loaders):
        return str(sized.image)
    return mmcv.rgb2bgr(_pixels(inferencer, sized))


def _run(inferencer: BaseInferencer, batch: Sequence[_Sized], tiling: Tiling | None = None,
         whole: tuple[int, int] | None = None) -> list[Prediction]:
    """Predicts a batch of images, or a batch of tiles from an image of size `whole`. All must have one size, unless the
    model supports several.
    """
    inputs = [_input(inferencer, sized) for sized in batch]
    meta = dict(inferencer.model.dataset_meta)
    meta['classes'] = trained_classes(dict(dataset_meta=meta))
    names = ', '.join(dict.fromkeys(
        f'of {sized.size[0]} x {sized.size[1]} pixels (height x width)' if isinstance(sized.image, np.ndarray)
        else str(sized.image) for sized in batch))
    # Some models fail, for example if an image is one pixel high.
    with (as_sentence(f'image {names} cannot be predicted', 'scale it, or leave it out'), in_scope(inferencer.scope),
          inferencer.scales.of_tiles(tiling and tiling.scale, batch[0].size,
                                                                      whole or batch[0].size)):
        samples = inferencer.forward(inferencer.collate_fn([inferencer.pipeline(image) for image in inputs]))
    predictions = [of_sample(sample, sized.size, meta, name=sized.name, image=sized.image,
                             score_thr=inferencer.score_thr) for sample, sized in zip(samples, batch, strict=True)]
    return [prediction for prediction in predictions if prediction]


def _run_tiles(inferencer: BaseInferencer, sized: _Sized, tiling: Tiling, batch_size: int, tell: Tell) -> Prediction:
    """Predicts a large image in tiles, `batch_size` at once."""
    if not sized.regions and sized.size[0] * sized.size[1] > MAX_PIXELS and not isinstance(sized.image, np.ndarray):
        show(f'note: {sized.image} is read as a whole, which needs '
             f'{BYTES * sized.size[0] * sized.size[1] / 1e9:.1f} GB of memory. To need less, install '
             'tifffile and save the image as an RGB TIFF with 8 bits and one page, which is read tile by tile.')
    pixels = sized.regions or _pixels(inferencer, sized)
    tiles = tiling.tiles(sized.size)

    def parts() -> Iterator[Prediction]:
        for first in range(0, len(tiles), batch_size):
            batch = [pixels[tile.rows, tile.columns] for tile in tiles[first:first + batch_size]]
            predictions = _run(
                inferencer, [_Sized(sized.name, part, part.shape[:2]) for part in batch], tiling, sized.size)
            tell(first + len(batch), len(tiles))
            for prediction in predictions:
                yield replace(prediction, image=None)  # else the pixels of all tiles would stay in memory

    return replace(join(parts(), tiles, sized.size), image=sized.image)
