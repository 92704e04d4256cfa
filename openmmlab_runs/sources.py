"""Images from whatever a user has: files, folders, patterns, addresses, Pillow, arrays, tensors, videos and cameras."""
import glob
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO, IOBase
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias
from urllib.parse import urlparse
from urllib.request import urlopen

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .bands import decode_bands, header_of
from .errors import UserError
from .files import list_images, what_is
from .images import MAX_PIXELS, check_pixels, decode, explained, to_rgb
from .storage import TRY, limited

VIDEO_SUFFIXES = ('.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v', '.mpg', '.mpeg', '.wmv')
NO_SOURCES = bytes, bytearray, memoryview, IOBase, Mapping  # what they yield, such as numbers, is no image
Picture: TypeAlias = str | Path | np.ndarray
Source: TypeAlias = 'str | Path | int | np.ndarray | Tensor | Image.Image | Iterable[Source]'


class Named(NamedTuple):
    """An image and the name for what is made of it."""
    name: str
    image: Picture  # a file, or `(H, W, 3)`, RGB, uint8; see `images_of`


def images_of(source: Source, urls: bool = False, as_rgb: bool = True) -> list[Named] | Iterator[Named]:
    """Returns the images of a source: a list if they are known, else an iterator that reads one after another.

    Args:
        source: One of these, or any number of them:

            - the path of an image, of a folder of images, or of a video (`VIDEO_SUFFIXES`); a pattern such as
              `a/*.png`, or `a/**/*.png` with the folders below
            - an address, `http://` or `https://`, of an image, if `urls` is set
            - the number of a camera, whose images do not end
            - an image of Pillow
            - an array `(H, W, 3)`, RGB, uint8
            - a tensor `(3, H, W)` or `(N, 3, H, W)`, RGB, uint8, or floats from 0 to 1
        urls: Whether to fetch addresses, of at most 3 bytes for each of 16 million pixels. Defaults to False.
        as_rgb: Whether images are RGB, uint8. Defaults to True. False takes any channels and values: arrays `(H, W,
            C)`, tensors `(C, H, W)` or `(N, C, H, W)`, and images of Pillow.

    Raises:
        UserError: If there is no image, or one cannot be fetched or read. Files of images are not opened here.
    """
    if isinstance(source, str | Path):
        return _of_text(source, urls, as_rgb)
    if isinstance(source, np.ndarray):
        return [Named('image', source)]
    if isinstance(source, Image.Image):
        name = Path(getattr(source, 'filename', '')).name
        with explained(name or 'of Pillow'):  # Pillow reads a file only now
            return [Named(name or 'image', to_rgb(source) if as_rgb else np.atleast_3d(np.asarray(source)))]
    if isinstance(source, Tensor):
        return [Named('image', image) for image in _of_tensor(source, as_rgb)]
    if isinstance(source, int) and not isinstance(source, bool):
        return _frames(source)
    if isinstance(source, Iterable) and not isinstance(source, NO_SOURCES):
        return chain.from_iterable(images_of(one, urls, as_rgb) for one in source)
    raise UserError(f'an image is a {type(source).__name__}, but must be a path, an address, the number of a camera, '
                    'an image of Pillow, an array or a tensor: convert it (content of a file by PIL.Image.open).')


def never_ends(source: Source) -> bool:
    """Returns whether a source is a camera, or has one."""
    if isinstance(source, list | tuple):
        return any(map(never_ends, source))
    return isinstance(source, int)


def _of_text(source: str | Path, urls: bool, as_rgb: bool) -> list[Named] | Iterator[Named]:
    text, path = str(source), Path(source)
    if text.startswith(('http://', 'https://')):
        return [Named(PurePosixPath(urlparse(text).path).name or 'image', _fetched(text, urls, as_rgb))]
    if path.is_dir():
        return [Named(one.name, one) for one in list_images(path)]
    if glob.has_magic(text) and not path.exists():
        found = sorted(Path(one) for one in glob.glob(text, recursive=True) if not Path(one).is_dir())
        if not found:
            raise UserError(f'no file matches {text}: correct the pattern.')
        return chain.from_iterable(_of_text(one, urls, as_rgb) for one in found)
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return _frames(path)
    if what_is(path) == 'does not exist':
        raise UserError(f'{source} does not exist: pass an image, a folder of images, a pattern or a video.')
    return [Named(path.name, source)]


def _fetched(url: str, allowed: bool, as_rgb: bool) -> np.ndarray:
    if not allowed:
        raise UserError(f'{url} is an address, and none is fetched unless you allow it: pass urls=True (--urls), or a '
                        'file.')
    most = 3 * MAX_PIXELS

    def get() -> bytes:
        with urlopen(url, timeout=TRY) as response:
            return response.read(most + 1)

    content = limited(url, get, lambda: most, TRY)
    if len(content) > most:
        raise UserError(f'image {url} has more than {most} bytes: take a smaller one, or download it.')
    if as_rgb:
        return decode(BytesIO(content), url, MAX_PIXELS)
    check_pixels(header_of(BytesIO(content), url)[:2], url, MAX_PIXELS)
    return decode_bands(content, url)


def _of_tensor(images: Tensor, as_rgb: bool) -> list[np.ndarray]:
    batch = images if images.dim() == 4 else images[None]
    if not as_rgb and batch.dim() == 4:
        return [np.ascontiguousarray(image) for image in batch.permute(0, 2, 3, 1).cpu().numpy()]
    if batch.dim() != 4 or batch.shape[1] != 3:
        raise UserError(f'a tensor has shape {tuple(images.shape)}, but must be (3, H, W) or (N, 3, H, W): permute it.')
    if batch.is_floating_point():
        if not ((batch >= 0) & (batch <= 1)).all():
            raise UserError(f'a tensor of {images.dtype} has values from {batch.min():g} to {batch.max():g}, but must '
                            'have them from 0 to 1: leave out the normalization, which the model has.')
        batch = batch.mul(255).round().to(torch.uint8)
    if batch.dtype != torch.uint8:
        raise UserError(f'a tensor has type {images.dtype}, but must be uint8, or floats from 0 to 1: convert it.')
    return [np.ascontiguousarray(image) for image in batch.permute(0, 2, 3, 1).cpu().numpy()]


def _frames(source: Path | int) -> Iterator[Named]:
    """Yields the frames of a video or a camera, one at a time, by numbers from 1."""
    kind, name = ('camera', f'camera{source}') if isinstance(source, int) else ('video', source.name)
    if not isinstance(source, int) and (what := what_is(source)):
        raise UserError(f'video {source} {what}: correct the path.')
    if isinstance(source, int) and source < 0:  # OpenCV would choose one, or crash
        raise UserError(f'camera {source} does not exist: count cameras from 0.')
    capture = cv2.VideoCapture(source if isinstance(source, int) else str(source))
    number = 0
    try:
        while (found := capture.read())[0]:
            number += 1
            yield Named(f'{name}_{number:06}', cv2.cvtColor(found[1], cv2.COLOR_BGR2RGB))
    finally:
        capture.release()
    if not number:
        raise UserError(f'{kind} {source} gives no image: check it, and whether OpenCV reads its format.')
