"""Reads images with any number of channels and 8, 16 or 32 bits, and converts them to 8-bit pictures.

Channels have the order of the file: red is first in PNG and JPEG, and OpenCV's BGR is not used. Pillow reads images
with 8 bits and at most 4 channels. tifffile (extra `tiff`) reads other TIFF files, and OpenCV reads PNG and other files
with 16 bits. In TIFF, channels may be the last axis, the first axis, or pages. If the file does not name their axis,
the shortest axis contains the channels.
"""
import logging
import math
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from mmengine.fileio import get
from PIL import Image, ImageOps, UnidentifiedImageError

from openmmlab_tools.errors import UserError, first_line

from .images import (
    ImageFault,
    check_alone,
    check_regular,
    decode,
    explained,
    has_16_bits,
    orientation,
    pages,
    size_as_loaded,
)

TIFF = (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+')
# TIFF tags: bits in a channel, channels that are stored together, kinds of numbers, and a number that GDAL writes as
# text.
BITS, SAMPLES, FORMAT, NODATA = 258, 277, 339, 42113
UNSIGNED = 1  # the kind of numbers without a sign
STRETCHED = 2, 98  # percentiles that become black and white
LOOKED_AT = 1000  # rows and columns, for percentiles
logging.getLogger('PIL.TiffImagePlugin').setLevel(logging.CRITICAL)  # it logs what tifffile reads then


class Pixels(NamedTuple):
    """Channels and type of the pixels of an image."""
    channels: int
    dtype: str  # numpy's name
    is_plain: bool  # whether mmcv's loader reads all of it but alpha: 8 bits, and grey or colours


class Header(NamedTuple):
    """The header of an image, as it is loaded: after the turn that its EXIF data asks for."""
    height: int
    width: int
    pixels: Pixels
    turn: int = 1  # by EXIF's number; see `orientation`

    @property
    def size(self) -> tuple[int, int]:
        return self.height, self.width


def read_header(source: str | Path | BinaryIO, name: str | Path | None = None) -> Header:
    """Reads the size and type of an image, but no pixel, of a path, or of an open file with a name for errors."""
    if isinstance(source, str | Path):
        with explained(source):
            check_regular(source)
            with open(source, 'rb') as file:
                return read_header(file, source)
    name = name or ''
    with explained(name):
        if image := _plain(source, name):
            pixels = Pixels(Image.getmodebands(_loaded_mode(image)), 'uint8', True)
        elif _is_tiff(source):
            shape, axis, dtype = _layout(series := _series(source, name), name)
            channels = 1 if axis is None else shape[axis]
            height, width = (size for index, size in enumerate(shape) if index != axis)
            is_plain = dtype == np.uint8 and channels in (1, 3) and len(series.pages) == 1
            return Header(height, width, Pixels(channels, dtype.name, is_plain))
        else:
            image = Image.open(source)
            pixels = Pixels(len(image.getbands()), 'uint16', False)
        return Header(*size_as_loaded(image), pixels, orientation(image))


def read_bands(path: str | Path, backend_args: dict[str, Any] | None = None) -> np.ndarray:
    """Reads an image from a file or from a storage backend of mmengine; see `decode_bands`."""
    with explained(path):
        if '://' not in str(path) and not backend_args:
            check_regular(path)
        return decode_bands(get(path, backend_args=backend_args), path)


def decode_bands(content: bytes, name: str | Path) -> np.ndarray:
    """Reads the content of an image file, `(H, W, C)`, in its type; float32 with NaN, if a TIFF has the value that it
    declares as nodata.
    """
    with explained(name):
        file = BytesIO(content)
        if image := _plain(file, name):
            image = ImageOps.exif_transpose(image) if orientation(image) > 1 else image
            return np.atleast_3d(np.asarray(image.convert(_loaded_mode(image))))
        return _of_tiff(file, name) if _is_tiff(file) else _of_16_bits(content, file)


def read_view(path: str | Path) -> np.ndarray:
    """Reads an image as a picture to draw on, `(H, W, 3)`, RGB, uint8; see `to_view`."""
    with explained(path):
        content = get(path)
    with suppress(UserError):  # without a package, there are still the higher bits
        if not read_header(BytesIO(content), path).pixels.is_plain:
            return to_view(decode_bands(content, path))
    return decode(BytesIO(content), path)


def to_view(pixels: np.ndarray) -> np.ndarray:
    """Converts an image `(H, W, C)` of any type to a picture `(H, W, 3)`, RGB, uint8.

    The first three channels become red, green and blue. If there are one or two channels, the first becomes grey.
    Values in uint8 stay unchanged. In each other channel, the 2nd percentile becomes 0, the 98th becomes 255, and NaN
    becomes 0.
    """
    shown = pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, axis=2)
    if shown.dtype == np.uint8:
        return np.ascontiguousarray(shown)
    shown = shown.astype(np.float32)
    some = shown[tuple(slice(None, None, math.ceil(side / LOOKED_AT)) for side in shown.shape[:2])].reshape(-1, 3)
    some = some[np.isfinite(some).all(axis=1)]
    low, high = np.percentile(some, STRETCHED, axis=0) if len(some) else np.zeros((2, 3))
    stretched = (shown - low) * (255 / np.maximum(high - low, np.finfo(np.float32).tiny))
    return np.nan_to_num(stretched.clip(0, 255), nan=0).round().astype(np.uint8)


def _is_tiff(file: BinaryIO) -> bool:
    file.seek(0)
    is_tiff = file.read(4) in TIFF
    file.seek(0)
    return is_tiff


def _loaded_mode(image: Image.Image) -> str:
    """Returns the mode without a palette, bits or inks."""
    return {'P': 'RGB', 'CMYK': 'RGB', '1': 'L'}.get(image.mode, image.mode)


def _plain(file: BinaryIO, name: str | Path) -> Image.Image | None:
    """Opens an image of 8 bits of which Pillow reads all channels; returns None for other TIFF, and for 16 bits."""
    is_tiff = _is_tiff(file)
    try:
        image = Image.open(file)
    except UnidentifiedImageError:
        if is_tiff:
            return None
        raise
    if is_tiff:
        tags: Any = getattr(image, 'tag_v2', {})
        samples = tags.get(SAMPLES, 1)
        is_stack = samples == 1 and getattr(image, 'n_frames', 1) > 1  # of pages, which may be channels
        is_deep = max(tags.get(BITS, (1,))) > 8 or {*tags.get(FORMAT, ())} - {UNSIGNED}
        if is_stack or is_deep or samples != len(image.getbands()):
            return None
    check_alone(len(pages(image)), name)
    return None if has_16_bits(image) or image.mode[0] in 'IF' else image


def _series(file: BinaryIO, name: str | Path) -> Any:
    """Opens a TIFF, and returns its image, as large as it is stored, without its smaller copies."""
    try:
        from tifffile import TiffFile
    except ImportError as error:
        raise ImageFault(name, 'is a TIFF of more channels or bits than Pillow reads: pip install tifffile, or convert '
                         'it') from error
    file.seek(0)
    first, *more = TiffFile(file).series
    if first.kind == 'generic' or not first.is_pyramidal:  # else it is a slide, whose label is no image
        check_alone(1 + sum(not (other.keyframe.is_reduced or other.keyframe.is_mask) for other in more), name)
    return first


def _layout(series: Any, name: str | Path) -> tuple[tuple[int, ...], int | None, np.dtype]:
    """Returns the shape of an image with two or three axes, the axis with the channels, and the type."""
    shape, axes = tuple(series.shape), series.axes
    if len(shape) > 3:
        long_axes = [index for index, size in enumerate(shape) if size > 1]
        shape, axes = tuple(shape[index] for index in long_axes), ''.join(axes[index] for index in long_axes)
    if len(shape) not in (2, 3) or 'T' in axes:  # times are no channels
        raise ImageFault(name, f'has the axes {series.axes} of lengths {shape}, but must have height, width and '
                         'channels: save one image per file')
    if len(shape) == 2:
        return shape, None, np.dtype(series.dtype)
    named = [index for index, axis in enumerate(axes) if axis not in 'YXQI']
    return shape, named[0] if len(named) == 1 else int(np.argmin(shape)), np.dtype(series.dtype)


def _of_tiff(file: BinaryIO, name: str | Path) -> np.ndarray:
    series = _series(file, name)
    shape, axis, _ = _layout(series, name)
    try:
        values = series.asarray().reshape(shape)
    except (ValueError, KeyError) as error:
        if 'imagecodecs' not in str(error):
            raise
        raise ImageFault(name, f'cannot be read ({first_line(error)}): pip install imagecodecs, or save it without '
                         'compression') from error
    values = values[..., None] if axis is None else np.moveaxis(values, axis, -1)
    declared = series.keyframe.tags.get(NODATA)
    with suppress(ValueError):  # a text that is no number
        is_empty = values == float(str(declared.value).strip('\0 ')) if declared else np.False_
        if is_empty.any():
            values = np.where(is_empty, np.float32(np.nan), values.astype(np.float32))
    return np.ascontiguousarray(values)


def _of_16_bits(content: bytes, file: BinaryIO) -> np.ndarray:
    import cv2
    with Image.open(file) as image:
        turn, channels = orientation(image), len(image.getbands())
    values = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if values is None:
        raise ValueError('OpenCV does not read it')
    values = np.atleast_3d(values)
    if values.shape[2] >= 3:
        values = values[..., [2, 1, 0, 3][:values.shape[2]]]
    if channels == 2:  # OpenCV makes colours of grey with alpha
        values = values[..., [0, -1]]
    values = values.swapaxes(0, 1) if turn >= 5 else values
    return np.ascontiguousarray(values[::-1 if turn in (3, 4, 7, 8) else 1, ::-1 if turn in (2, 3, 6, 7) else 1])
