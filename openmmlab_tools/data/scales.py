"""Scales at which images are shown in training and in predictions: pixels of the model's input per pixel of the image.
"""
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from mmengine.config import Config
from mmengine.registry import TRANSFORMS

from openmmlab_tools.config_walk import walk
from openmmlab_tools.errors import show
from openmmlab_tools.files import IMAGE_SUFFIXES
from openmmlab_tools.pictures.bands import read_header

from .datasets import build_unread, listed, unwrap

KEY = 'images_of_training'  # of `meta` in a checkpoint, with what `summarized` returns
MEASURED = 50  # images of training whose sizes are read, if the checkpoint does not tell
FAR = 1.5  # times the scale of training
NamedScale: TypeAlias = Literal['train', 'config']
TileScale: TypeAlias = float | NamedScale


class Trained(NamedTuple):
    """The middle height and width of images of training, and the least and the largest scale."""
    size: tuple[int, int]
    least: float
    most: float

    def note(self, scales: Sequence[float]) -> str:
        """Returns a sentence if a scale is far from the scales in training; else ''."""
        far = [scale for scale in scales if not self.least / FAR <= scale <= self.most * FAR]
        return '' if not far else (
            f'shown at {_range(min(far), max(far))} times their size, but training shows images with {self.size[1]} x '
            f'{self.size[0]} pixels at {_range(self.least, self.most)} times their size')


def _range(least: float, most: float) -> str:
    return ' to '.join(dict.fromkeys(f'{scale:.3g}' for scale in (least, most)))


def scale_of(sample: Any, default: float | None = None) -> float | None:
    """Returns the scale of a data sample, of width and height the geometric mean; `default` if it does not tell."""
    factor = sample.metainfo.get('scale_factor')
    return default if factor is None else float(np.exp(np.log(np.ravel(factor)[:2]).mean()))


def mixes(config: Any) -> bool:
    """Returns whether a transform of a config gives one image several scales, or an unknown scale."""
    return any(re.search('Mosaic|Mix|Affine', str(part.get('type'))) for _, part in walk(config))


def _mean(pair: Sequence[float]) -> float:
    return float(np.sqrt(pair[0] * pair[1]))


def summarized(seen: Sequence[tuple[int, int, float | None]]) -> dict[str, Any]:
    """Returns the middle height and width of images, and the 1st and 99th percentile of their scales, if known."""
    scales = [scale for *_, scale in seen if scale]
    return dict(size=np.median([size for *size, _ in seen], axis=0).astype(int).tolist(),
                scales=np.quantile(scales, (0.01, 0.99)).tolist() if scales else None)


def shown(size: Sequence[int], resizes: Sequence[Any]) -> tuple[float, float]:
    """Returns the scale of width and height at which transforms show an image of a height and width."""
    sample = dict(img=np.zeros(size, np.uint8), img_shape=size, scale_factor=(1., 1.))
    for resize in resizes:
        sample = resize(sample)
    width, height = sample['scale_factor']
    return float(width), float(height)


def _measured(cfg: Config) -> dict[str, Any] | None:
    """Returns the middle size of a config's images of training, if they are at hand, and their scales."""
    seen: list[tuple[int, int, float | None]] = []
    for _, dataset_cfg in unwrap((cfg.get('train_dataloader') or {}).get('dataset') or {}, ''):
        with suppress(Exception):  # datasets and files can raise any error, and this is for a note
            dataset: Any = build_unread(dataset_cfg)
            folder = dataset.data_prefix.get('img') or dataset.data_prefix['img_path']
            names = [] if '://' in folder else listed(dataset, folder, IMAGE_SUFFIXES)
            steps = dataset_cfg.get('pipeline') or ()
            resizes = [TRANSFORMS.build(step) for step in steps
                       if any('Resize' in str(part.get('type')) for _, part in walk(step))]
            for size in [read_header(Path(folder, name))[:2] for name in names[::len(names) // MEASURED + 1]]:
                seen.append((*size, None if mixes(steps) else _mean(shown(size, resizes))))
    return summarized(seen) if seen else None


class Scales:
    """Shows tiles at the scale of training, and prints one note if images are shown at a very different scale.

    Args:
        transforms: A pipeline of tests, in place: this object is appended, to see each image as it is shown.
        meta: The entry `meta` of the checkpoint.
        cfg: The config, whose images of training are measured if the checkpoint does not tell.
    """

    def __init__(self, transforms: list[Any], meta: Mapping[str, Any], cfg: Config) -> None:
        self.transforms, self.meta, self.cfg = transforms, meta, cfg
        self.at = next((index for index, transform in enumerate(transforms) if 'Resize' in type(transform).__name__),
                       None)
        self.told: set[str] = set()  # what is told only once
        self.remedy = ''
        transforms.append(self)

    @cached_property
    def trained(self) -> Trained | None:
        known = self.meta.get(KEY) or _measured(self.cfg)
        if known is None:
            return None
        return Trained(known['size'], *(known['scales'] or [_mean(self.shown(known['size']))] * 2))

    @contextmanager
    def of_tiles(self, scale: TileScale | None, size: Sequence[int], whole: Sequence[int]) -> Iterator[None]:
        """Shows tiles of a height and width, from an image of a height and width, at a scale in the `with` block; None
        is for whole images.
        """
        side = f', such as --tile {max(self.trained.size)}' if self.trained else ''
        self.remedy = f'predict in tiles, which are shown as in training{side}' if scale is None else (
            'leave out --tile-scale')
        before = list(self.transforms)
        is_relative = self.at is None or not getattr(before[self.at], 'scale', None)
        if isinstance(scale, float | int) or (scale == 'train' and not is_relative):
            at = slice(1, 1) if self.at is None else slice(self.at, self.at + 1)
            pair, why = ((float(scale),) * 2, '') if scale != 'train' else self._for_training(size, whole)
            if 'tiles' not in self.told:
                self.tell('tiles', f'Tiles are shown at {_mean(pair):.3g} times their size{why}; the config would show '
                          f'them at {_mean(self.shown(size)):.3g} (--tile-scale config).')
            self.transforms[at] = [TRANSFORMS.build(dict(
                type='Resize', scale_factor=pair, keep_ratio=pair[0] == pair[1],
                interpolation=getattr([*before[at], None][0], 'interpolation', 'bilinear')))]
        try:
            yield
        finally:
            self.transforms[:] = before

    def _for_training(self, size: Sequence[int], whole: Sequence[int]) -> tuple[tuple[float, float], str]:
        """Returns the scale of tiles of a size, from a whole image, that is nearest to training, and why.

        It is the scale at which the config shows an image of training, but none that training did not show. If training
        is unknown, the tiles keep their size, but they are not smaller than in the whole image as the config shows it,
        nor larger than the config shows an image of their size.
        """
        if self.trained:
            return self._limited(self.trained.size, self.trained.least, self.trained.most), (
                f', as images of {self.trained.size[1]} x {self.trained.size[0]} pixels in training')
        at_least, at_most = _mean(self.shown(whole)), _mean(self.shown(size))
        scale = min(max(1., at_least), at_most)
        return self._limited(whole, scale, scale), ', because neither the checkpoint nor the data of the config shows '\
            'the scale of training'

    def _limited(self, size: Sequence[int], least: float, most: float) -> tuple[float, float]:
        """Returns the scale at which the config shows an image of a size, but between two scales."""
        assert self.at is not None
        pair = self.shown(size)
        mean = _mean(pair)
        if getattr(self.transforms[self.at], 'keep_ratio', True):
            pair = mean, mean  # they differ by rounding
        width, height = (side * min(max(mean, least), most) / mean for side in pair)
        return width, height

    def tell(self, key: str, text: str) -> None:
        if key not in self.told:
            self.told.add(key)
            show(text)

    def __call__(self, packed: dict[str, Any]) -> dict[str, Any]:
        scale = scale_of(packed['data_samples'], None if self.at is not None else 1.)
        if scale and 'far' not in self.told and self.trained and (note := self.trained.note([scale])):
            self.tell('far', f'note: images are {note}: {self.remedy}.')
        return packed

    def shown(self, size: Sequence[int]) -> tuple[float, float]:
        """Returns the scale of the width and of the height at which the config shows an image of a height and width."""
        return shown(size, [] if self.at is None else [self.transforms[self.at]])
