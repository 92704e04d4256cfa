"""Decodes image files, and names the faults of those that cannot be used."""
import re
from io import BytesIO
from typing import Any

from mmengine.fileio import get
from PIL import Image, UnidentifiedImageError

from cpvt_mm.errors import first_line

from .findings import Finding, Kind

EXIF_ORIENTATION = 0x0112

LOSES_BITS = ('has 16 bits per channel, but is read as 8 bits (value // 256): convert it to 8 bits, with the range of '
              'values that you need')


def decode(path: str, kind: Kind, backend_args: dict[str, Any] | None = None) -> Image.Image | Finding:
    """Decodes an image completely; returns a finding of `kind` if it is missing or cannot be decoded.

    An image with 16 bits per channel is a finding, too, because loaders drop the lower bits. A label map is not.
    Pillow detects a truncated file. Corruption in the middle of a JPEG cannot be detected.
    """
    try:
        content = get(path, backend_args=backend_args)
        if not content:
            return Finding(kind, path, 'is empty (0 bytes)')
        image = Image.open(BytesIO(content))
        loses_bits = kind is Kind.IMAGE and has_16_bits(image)
        image.load()
    except FileNotFoundError:
        return Finding(kind, path, 'does not exist')
    except UnidentifiedImageError:
        return Finding(kind, path, 'is not an image that Pillow can read')
    except Exception as error:  # each format raises its own errors
        return Finding(kind, path, f'cannot be read: {first_line(error)}')
    return Finding(kind, path, LOSES_BITS) if loses_bits else image


def size_as_loaded(image: Image.Image) -> tuple[int, int]:
    """Returns height and width after the rotation in the file's EXIF data, which mmcv's loader applies."""
    width, height = image.size
    return (width, height) if image.getexif().get(EXIF_ORIENTATION, 1) >= 5 else (height, width)


def has_16_bits(image: Image.Image) -> bool:
    """Returns whether an image has 16 bits per channel, which mmcv's loader reads as 8.

    Args:
        image: The result of `Image.open`, before its pixels are loaded; Pillow discards the information when loading.
    """
    # Pillow's raw mode of the file, such as 'I;16', 'RGB;16B' or 'RGB;16L'; 'BGR;16' has 5 bits per channel.
    return any(re.search(r'I;16|;16[BLN]', str(tile[-1])) for tile in getattr(image, 'tile', ()))
