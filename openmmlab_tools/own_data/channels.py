"""Measures the values of each channel of images, for their normalization."""
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from openmmlab_tools.errors import UserError
from openmmlab_tools.pictures.bands import read_bands
from openmmlab_tools.readers.form.dataset import LabelledData

MEASURED = 200  # images, evenly taken from those for training
MOST = 128  # channels, of OpenCV 5
READ_AS_8_BITS = (1, 3)  # channels of images of 16 bits that mmcv's loader reads


class Moments(NamedTuple):
    """Sums over pixels, for each channel."""
    pixels: int  # pixels in one channel, including pixels without a value
    counts: np.ndarray  # `(C,)`: the number of values
    total: np.ndarray  # the sum of the values
    squares: np.ndarray  # the sum of their squares
    least: np.ndarray
    most: np.ndarray

    @property
    def mean(self) -> list[float]:
        """The mean of each channel; 0 for one without values."""
        return _rounded(self._mean)

    @property
    def std(self) -> list[float]:
        """The standard deviation of each channel; 1 if all values of a channel are equal, because it cannot be scaled.
        """
        variance = self.squares / np.maximum(self.counts, 1) - self._mean**2
        # Equal values have a deviation of 0, but rounding errors may leave a small difference.
        is_flat = variance <= 1e-12 * self._mean**2
        return _rounded(np.where(is_flat, 1, np.sqrt(np.maximum(variance, 0))))

    @property
    def empty(self) -> float:
        """The share of values that are missing, in the channel with most of them."""
        return float(1 - self.counts.min() / self.pixels)

    @property
    def _mean(self) -> np.ndarray:
        return self.total / np.maximum(self.counts, 1)


def moments_of(image: np.ndarray) -> Moments:
    """Measures an image, `(H, W, C)`; values that are not finite are none."""
    return Moments(math.prod(image.shape[:2]), *np.transpose([_sums(channel) for channel in np.moveaxis(image, -1, 0)]))


def _sums(channel: np.ndarray) -> tuple[float, ...]:
    values = channel[np.isfinite(channel)].astype(np.float64)
    return len(values), values.sum(), (values**2).sum(), values.min(initial=np.inf), values.max(initial=-np.inf)


def joined(parts: Iterable[Moments]) -> Moments:
    """Adds the moments of at least one image. All must have the same number of channels."""
    return reduce(lambda a, b: Moments(
        a.pixels + b.pixels, a.counts + b.counts, a.total + b.total, a.squares + b.squares,
        np.minimum(a.least, b.least), np.maximum(a.most, b.most)), parts)


@dataclass(frozen=True)
class Bands:
    """Channels of images that mmcv's own loader does not read whole, and their normalization."""
    channels: int
    mean: list[float]  # of each channel
    std: list[float]
    has_empty: bool  # whether pixels have no value
    notes: tuple[str, ...]  # sentences about them


def measure_bands(data: LabelledData, load_from: str | None = None) -> Bands | None:
    """Measures at most `MEASURED` images for training; returns None if mmcv's own loader reads all (8 bits, grey or
    colours, perhaps with alpha), or all but the lower 8 of 16 bits where channels differ between images, or where the
    model of a checkpoint `load_from` was trained with 8 bits.

    Raises:
        UserError: If channels differ, and mmcv cannot read the images, or OpenCV or the model does not take them.
    """
    if all(kind.is_plain for kind in data.pixels) or (load_from and is_readable(data)):
        return None
    channels = sorted({kind.channels for kind in data.pixels})
    if load_from:
        raise UserError(f'images in {data.root} have {" or ".join(map(str, channels))} channels and are no RGB images '
                        f'with 8 bits, but {load_from} was trained with such images. Convert the images, or pass only '
                        'the config.')
    if len(channels) > 1:
        if is_readable(data):
            return None
        raise UserError(f'images in {data.root} have {" or ".join(map(str, channels))} channels, but all images must '
                        'have the same number of channels. Convert some images, or move them away.')
    if channels[0] > MOST:
        raise UserError(f'images in {data.root} have {channels[0]} channels, but OpenCV can scale at most {MOST} '
                        'channels. Select some channels, or reduce them, for example by a principal component '
                        'analysis.')
    paths = [picture.path for picture in data.splits['train']]
    chosen = [paths[index] for index in np.linspace(0, len(paths) - 1, min(len(paths), MEASURED), dtype=int)]
    with ThreadPoolExecutor() as threads:
        moments = joined(threads.map(lambda path: moments_of(read_bands(path)), chosen))
    types = sorted({kind.dtype for kind in data.pixels})
    notes = [f'Images are loaded whole, with {channels[0]} channels of {" and ".join(types)} in the order of the files.'
             f' Their mean and standard deviation are those of {len(chosen)} images for training.']
    if len(types) > 1:
        notes.append('The types differ between images: make sure that their values have one scale.')
    if moments.empty:
        notes.append(f'{100 * moments.empty:.2g} % of the pixels have no value (NaN, infinite or nodata): they get the '
                     'mean.')
    return Bands(channels[0], moments.mean, moments.std, moments.empty > 0, tuple(notes))


def is_readable(data: LabelledData) -> bool:
    """Returns whether mmcv's own loader reads all images, if only as 8 bits."""
    return all(kind.is_plain or (kind.dtype == 'uint16' and kind.channels in READ_AS_8_BITS) for kind in data.pixels)


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f'{value:.6g}') for value in values]
