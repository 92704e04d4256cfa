"""Reads images from any source: files, folders, patterns, addresses, Pillow, arrays, tensors, videos and cameras."""
import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO, IOBase
from itertools import chain, islice, takewhile
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias
from urllib.parse import urlparse
from urllib.request import urlopen

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from openmmlab_tools.choices import MAX_PIXELS, VIDEO_SUFFIXES
from openmmlab_tools.errors import UserError, as_sentence
from openmmlab_tools.files import list_images, what_is
from openmmlab_tools.pictures.bands import decode_bands, read_header
from openmmlab_tools.pictures.images import check_pixels, check_regular, decode, explained, pages, to_rgb
from openmmlab_tools.pictures.prediction import Picture
from openmmlab_tools.storage import TRY, limited

from .regions import Regions

CAMERAS = 100  # OpenCV takes the hundreds of a number for a kind of driver
NO_SOURCES = bytes, bytearray, memoryview, IOBase, Mapping  # what they yield, such as numbers, is no image
Source: TypeAlias = 'str | Path | int | np.ndarray | Tensor | Image.Image | Named | Iterable[Source]'


class Named(NamedTuple):
    """An image, and the name for its results."""
    name: str
    image: Picture | Regions  # a file, or an array `(H, W, 3)`, RGB, uint8; see `images_of`


def images_of(source: Source, urls: bool = False, as_rgb: bool = True, endless: bool = True
              ) -> list[Named] | Iterator[Named]:
    """Returns the images of a source: a list if their number is known, else an iterator that has read the first image.

    Args:
        source: One of the following, or an iterable of these:

            - the path of an image, a folder with images, or a video (`VIDEO_SUFFIXES`)
            - a pattern such as `a/*.png`, or `a/**/*.png` for all folders below `a`, which then begin the names
            - the address of an image, `http://` or `https://`, if `urls` is set
            - the number of a camera; the iterator does not end
            - an image of Pillow; if it has several frames, its current frame
            - an array `(H, W, 3)`, RGB, uint8
            - a tensor `(3, H, W)` or `(N, 3, H, W)`, RGB, uint8, or floats from 0 to 1
            - a return value of this function
        urls: Whether to fetch addresses. An image may have at most 3 bytes for each of 16 million pixels. Defaults to
            False.
        as_rgb: Whether images are RGB, uint8. Defaults to True. With False, they may have any channels and values:
            arrays `(H, W, C)`, tensors `(C, H, W)` or `(N, C, H, W)`, and images of Pillow.
        endless: Whether to accept cameras. Defaults to True.

    Raises:
        UserError: If there is no image, or an image cannot be fetched or read. `pages_of` opens files later.
    """
    images = _images_of(source, urls, as_rgb, endless)
    return images if isinstance(images, list) else chain([*islice(images, 1)], images)


def pages_of(named: Named, as_rgb: bool = True, max_pixels: int | None = None) -> Iterator[Named]:
    """Yields an image, or each frame or page of a file, with names such as `a.gif_000001`.

    Without `as_rgb`, it yields the file itself, because pages of a TIFF may be channels. Raises a UserError if a page
    has more than `max_pixels`.
    """
    if not as_rgb or isinstance(named.image, np.ndarray | Regions):
        yield named
        return
    with explained(named.image):
        check_regular(named.image)
        with Image.open(named.image) as image:
            places = pages(image)
            for number, place in enumerate(places if len(places) > 1 else (), start=1):
                image.seek(place)
                check_pixels(image.size[::-1], named.image, max_pixels)
                yield Named(f'{named.name}_{number:06}', to_rgb(image))
    if len(places) == 1:
        yield named


def _images_of(source: Source, urls: bool, as_rgb: bool, endless: bool) -> list[Named] | Iterator[Named]:
    if isinstance(source, Named):
        return [source]
    if isinstance(source, str | Path):
        return _of_text(source, urls, as_rgb)
    if isinstance(source, np.ndarray):
        return [Named('image', _checked(source, as_rgb))]
    if isinstance(source, Image.Image):
        return _of_pillow(source, as_rgb)
    if isinstance(source, Tensor):
        return [Named('image', image) for image in _of_tensor(source, as_rgb)]
    if isinstance(source, int) and not isinstance(source, bool):
        if not endless:
            raise UserError(f'the images of camera {source} do not end: pass stream=True.')
        if source not in range(CAMERAS):
            raise UserError(f'camera {source} does not exist: count cameras from 0.')
        return _frames(source, f'camera{source}')
    if isinstance(source, Iterable) and not isinstance(source, NO_SOURCES):
        parts = (_images_of(item, urls, as_rgb, endless) for item in source)
        return chain.from_iterable([*parts] if isinstance(source, list | tuple) else parts)
    raise UserError(f'an image is a {type(source).__name__}, but must be a path, an address, the number of a camera, '
                    'an image of Pillow, an array or a tensor: convert it (content of a file by PIL.Image.open).')


def _of_text(source: str | Path, urls: bool, as_rgb: bool) -> list[Named] | Iterator[Named]:
    text, path = str(source), Path(source)
    if text.startswith(('http://', 'https://')):
        if not urls:
            raise UserError(f'{text} is an address, but images are only downloaded with urls=True (--urls): set it, or '
                            'pass a file.')
        name = PurePosixPath(urlparse(text).path).name or 'image'
        return (Named(name, _fetched(url, as_rgb)) for url in [text])
    if os.path.isdir(path):
        return [Named(file.name, file) for file in list_images(path)]
    if glob.has_magic(text) and not os.path.exists(path):
        files = sorted(Path(file) for file in glob.glob(text, recursive=True) if not os.path.isdir(file))
        if not files:
            raise UserError(f'no file matches {text}: correct the pattern.')
        root = root_of(text)
        return chain.from_iterable(_of_file(file, file.relative_to(root).as_posix()) for file in files)
    if what_is(path) == 'does not exist':
        raise UserError(f'{source} does not exist: pass an image, a folder of images, a pattern or a video.')
    return _of_file(path, path.name)


def root_of(pattern: str) -> Path:
    """Returns the folder before the first wildcard of a pattern, to which names of images are relative."""
    return Path(*takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))


def _of_file(path: Path, name: str) -> list[Named] | Iterator[Named]:
    return _frames(path, name) if path.suffix.lower() in VIDEO_SUFFIXES else [Named(name, path)]


def _of_pillow(image: Image.Image, as_rgb: bool) -> Iterator[Named]:
    name = Path(os.fsdecode(getattr(image, 'filename', ''))).name
    with explained(name or 'of Pillow'):  # Pillow reads a file only now
        pixels = to_rgb(image) if as_rgb else np.atleast_3d(np.asarray(image))
    yield Named(name or 'image', _checked(pixels, as_rgb))


def _fetched(url: str, as_rgb: bool) -> np.ndarray:
    most = 3 * MAX_PIXELS

    def get() -> bytes:
        with urlopen(url, timeout=TRY) as response:
            return response.read(most + 1)

    content = limited(url, get, lambda: most, TRY)
    if len(content) > most:
        raise UserError(f'image {url} has more than {most} bytes: use a smaller image, or download it first.')
    if as_rgb:
        return decode(BytesIO(content), url, MAX_PIXELS)
    check_pixels(read_header(BytesIO(content), url).size, url, MAX_PIXELS)
    return decode_bands(content, url)


def _checked(image: np.ndarray, as_rgb: bool) -> np.ndarray:
    if not image.size:
        raise UserError(f'an image has shape {image.shape}, so it has no pixels: remove it.')
    if image.ndim != 3 or (as_rgb and (image.shape[2], image.dtype) != (3, np.uint8)) or image.dtype.kind not in 'uif':
        expected = '(H, W, 3), RGB, uint8' if as_rgb else '(H, W, C), of numbers'
        raise UserError(f'an image has shape {image.shape} and type {image.dtype}, but must be {expected}: convert it.')
    return image


def _of_tensor(images: Tensor, as_rgb: bool) -> list[np.ndarray]:
    with as_sentence('a tensor cannot be read', 'pass a dense tensor that is not on the meta device'):
        pixels = (images.float() if images.dtype == torch.bfloat16 else images).numpy(force=True)
    batch = pixels if images.dim() == 4 else pixels[None]
    if batch.ndim != 4 or (as_rgb and batch.shape[1] != 3):
        raise UserError(f'a tensor has shape {tuple(images.shape)}, but must be (3, H, W) or (N, 3, H, W): permute it.')
    if as_rgb and batch.dtype.kind == 'f':
        if not ((batch >= 0) & (batch <= 1)).all():
            raise UserError(f'a tensor of {images.dtype} has values from {batch.min():g} to {batch.max():g}, but must '
                            'have values from 0 to 1: do not normalize it, because the model does this.')
        batch = (batch * 255).round().astype(np.uint8)
    return [_checked(np.ascontiguousarray(image), as_rgb) for image in batch.transpose(0, 2, 3, 1)]


class BrokenVideo(UserError):
    """A video or a camera has fewer images than it should. The error is raised after the last image."""

    def __init__(self, name: str, fault: str) -> None:
        super().__init__(f'{name} {fault}.')
        self.name = name


def _frames(source: Path | int, name: str) -> Iterator[Named]:
    """Yields the frames of a video or a camera one at a time, with numbers from 1. Broken frames have numbers as well.
    """
    if not isinstance(source, int):
        check_regular(source)
    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # the error says it all
    capture, number = cv2.VideoCapture(source if isinstance(source, int) else str(source)), 0
    cv2.utils.logging.setLogLevel(level)
    count, rate = (capture.get(key) for key in (cv2.CAP_PROP_FRAME_COUNT, cv2.CAP_PROP_FPS))
    broken, last = list[int](), 0.  # the numbers of broken frames, and the time of the last whole one
    try:
        while True:
            is_read, pixels = capture.read()
            if not is_read and (isinstance(source, int) or number >= count):
                break
            number += 1
            if is_read:
                last = capture.get(cv2.CAP_PROP_POS_MSEC)
                yield Named(f'{name}_{number:06}', cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))
            else:
                broken.append(number)
    finally:
        capture.release()
    if number == len(broken):
        raise BrokenVideo(name, 'contains no readable image: check the file, and whether OpenCV supports its format')
    if isinstance(source, int):
        raise BrokenVideo(name, f'gives no more images after {number}: check its connection')
    if broken and not _is_complete(number, broken, last, 1000 * count / rate if rate > 0 else 0):
        raise BrokenVideo(name, f'has {number} frames, but {len(broken)} of them cannot be read (from number '
                          f'{broken[0]} to {broken[-1]}): repair or copy the file again')


def _is_complete(number: int, broken: list[int], last: float, duration: float) -> bool:
    """Returns whether a video was read to its end, which is true if its last frame has the time of the end.

    Some formats store a duration only. OpenCV then estimates the number of frames, so the number may be too large.
    """
    read = broken[0] - 1
    return broken == [*range(read + 1, number + 1)] and read > 1 and duration - last <= 1.5 * last / (read - 1)
