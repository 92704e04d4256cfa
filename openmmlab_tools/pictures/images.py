"""Reads images with Pillow, with the same pixels as mmcv's loader. Pillow returns the size before it decodes."""
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from openmmlab_tools.errors import FileFault, UserError, first_line
from openmmlab_tools.files import what_is

EXIF_ORIENTATION = 0x0112
SUBFILE, REDUCED, MASK = 254, 1, 4  # TIFF's tag for the kind of a page, and its bits for smaller copies and masks
SEVERAL = 'has {} images (pages or frames), but only the first is read: save each of them as a file of its own'
ONE_IMAGE = ('MPO', 'PSD')  # formats whose further frames are previews or views of a photo, or layers
TOO_LARGE = 'pixels (width x height), but at most'  # in the error of more
LOSES_BITS = ('has 16 bits per channel, but is read as 8 bits (value // 256): convert it to 8 bits, with the range of '
              'values that you need, or load all bits with openmmlab_tools.LoadBandsFromFile')
NO_IMAGE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)  # what Pillow raises for damaged files


class ImageFault(FileFault):
    """A fault of an image."""
    noun = 'image '


def check_regular(path: str | Path) -> None:
    """Raises a FileFault if a path is a folder, or a pipe or a device, which may never end."""
    os.stat(path)
    if fault := what_is(path):
        raise FileFault(path, f'{fault}: put the file there, or correct the path')


def read_image(path: str | Path, size: tuple[int, int] | None = None, max_pixels: int | None = None) -> np.ndarray:
    """Reads an image as RGB, `(H, W, 3)`, uint8, with the same pixels as mmcv's loader: images with 16 bits become 8
    bits (value // 256). Resizes to `size`, height and width, if it is given. Raises a UserError for an image with more
    than `max_pixels`, by default Pillow's limit.
    """
    import mmcv  # not needed to look at sizes
    with explained(path):
        check_regular(path)
        with open(path, 'rb') as file:
            pixels = decode(file, path, max_pixels)
    return pixels if size is None else mmcv.imresize(pixels, size[::-1])


def decode(file: BinaryIO, name: str | Path, max_pixels: int | None = None) -> np.ndarray:
    """Reads the content of an image file as `read_image` does; a UserError contains `name`."""
    with explained(name), Image.open(file) as image:
        check_pixels(image.size[::-1], name, max_pixels)
        check_alone(len(pages(image)), name)
        return to_rgb(image)


def pages(image: Image.Image) -> list[int]:
    """Returns the numbers, from 0, of the images in a file that Pillow has opened: pages of a TIFF and frames of an
    animation, but no smaller copies, masks, previews or layers.
    """
    count = 1 if image.format in ONE_IMAGE else getattr(image, 'n_frames', 1)
    if count == 1 or image.format != 'TIFF':
        return [*range(count)]
    numbers = []
    for number in range(count):
        image.seek(number)
        if not getattr(image, 'tag_v2', {}).get(SUBFILE, 0) & (REDUCED | MASK):
            numbers.append(number)
    image.seek(0)
    return numbers or [0]


def check_alone(count: int, name: str | Path) -> None:
    """Raises an ImageFault if a file has several images, of which only the first would be read."""
    if count > 1:
        raise ImageFault(name, SEVERAL.format(count))


def check_pixels(size: tuple[int, int], name: str | Path, most: int | None) -> None:
    """Raises an ImageFault if an image of a size, height and width, has more than `most` pixels; None: any number."""
    if most is not None and size[0] * size[1] > most:
        raise ImageFault(name, f'has {size[1]} x {size[0]} {TOO_LARGE} {most} are allowed: scale it down')


@contextmanager
def explained(name: str | Path) -> Iterator[None]:
    """Converts any error in the `with` block, which reads an image, to an ImageFault with its name."""
    try:
        yield
    except UserError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageFault(name, f'has too many pixels ({first_line(error).rstrip(".")}): scale it down') from error
    except UnidentifiedImageError as error:
        raise ImageFault(name, 'cannot be read: it is damaged or not an image that Pillow knows') from error
    except Exception as error:  # each format raises its own errors
        reason = error.strerror if isinstance(error, OSError) and error.strerror else (
            f'it is damaged or not an image ({first_line(error).rstrip(".")})')
        raise ImageFault(name, f'cannot be read: {reason}') from error


def to_rgb(image: Image.Image) -> np.ndarray:
    """Converts an image of Pillow to an array of pixels; see `read_image`."""
    if orientation(image) > 1:
        image = ImageOps.exif_transpose(image)
    if image.mode in ('I', 'F') or image.mode.startswith('I;16'):
        values = np.asarray(image)
        if values.dtype.kind == 'f' or values.max() >= 1 << 16 or values.min() < 0:
            raise ValueError('it has more than 16 bits per channel')
        return np.repeat((values >> 8).astype(np.uint8)[..., None], 3, axis=2)
    return np.asarray(image.convert('RGB'))


def size_as_loaded(image: Image.Image) -> tuple[int, int]:
    """Returns height and width after the rotation in the file's EXIF data, if mmcv's loader applies it."""
    width, height = image.size
    return (width, height) if orientation(image) >= 5 else (height, width)


def orientation(image: Image.Image) -> int:
    """Returns the EXIF number of the rotation that mmcv's loader applies: 1 for none, 5 to 8 if height and width swap.
    """
    kind = 'JPEG' if image.format == 'MPO' else str(image.format)
    if kind == 'TIFF' or not is_turned(kind):  # Pillow has already turned TIFF images
        return 1
    try:
        number = image.getexif().get(EXIF_ORIENTATION, 1)
    except Exception:  # damaged data raises any error; OpenCV ignores it
        return 1
    return number if isinstance(number, int) else 1


@cache
def is_turned(format: str) -> bool:
    """Returns whether the installed OpenCV, which mmcv's loader calls, turns images of a format by their EXIF data."""
    import cv2
    exif, file = Image.Exif(), BytesIO()
    exif[EXIF_ORIENTATION] = 6
    try:
        Image.new('RGB', (16, 8)).save(file, format, exif=exif)
        loaded = cv2.imdecode(np.frombuffer(file.getvalue(), np.uint8), cv2.IMREAD_COLOR)
    except (KeyError, OSError, ValueError, cv2.error):  # Pillow does not write it, or OpenCV does not read it
        return False
    return loaded is not None and loaded.shape[:2] == (16, 8)


def has_16_bits(image: Image.Image) -> bool:
    """Returns whether an image, not loaded yet, has 16 bits per channel, which mmcv's loader reads as 8."""
    # A TIFF has a tag for it. Else Pillow's raw mode tells, such as 'I;16' or 'RGB;16B'; 'BGR;16' has 5 bits a channel.
    return 16 in {*getattr(image, 'tag_v2', {}).get(ExifTags.Base.BitsPerSample, ())} or any(
        re.search(r'I;16|;16[BLN]', str(tile[-1])) for tile in getattr(image, 'tile', ()))
