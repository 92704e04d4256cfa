"""Checks of image files."""
from io import BytesIO
from typing import Any

from mmengine.fileio import get
from PIL import Image, UnidentifiedImageError

from cpvt_mm.errors import first_line

from .findings import Finding, Kind

EXIF_ORIENTATION = 0x0112


def decode(path: str, kind: Kind, backend_args: dict[str, Any] | None = None) -> Image.Image | Finding:
    """Decodes an image to its last pixel; a finding of `kind`, if it is missing or not whole.

    Pillow detects a truncated file. Corruption in the middle of a JPEG cannot be detected.
    """
    try:
        content = get(path, backend_args=backend_args)
        if not content:
            return Finding(kind, path, 'is empty (0 bytes)')
        image = Image.open(BytesIO(content))
        image.load()
    except FileNotFoundError:
        return Finding(kind, path, 'does not exist')
    except UnidentifiedImageError:
        return Finding(kind, path, 'is no image that Pillow knows')
    except Exception as error:  # each format has errors of its own
        return Finding(kind, path, f'cannot be read: {first_line(error)}')
    return image


def size_as_loaded(image: Image.Image) -> tuple[int, int]:
    """Returns height and width after the rotation that the file asks for, which mmcv's loader follows."""
    width, height = image.size
    return (width, height) if image.getexif().get(EXIF_ORIENTATION, 1) >= 5 else (height, width)


def check_image(path: str, size: tuple[int, int] | None = None, backend_args: dict[str, Any] | None = None
                ) -> list[Finding]:
    """Finds what is wrong with an image file.

    Args:
        path: The file.
        size: Height and width that it should have. Defaults to None: any.
        backend_args: The dataset's argument for mmengine's storage backends. Defaults to None: a local file.
    """
    image = decode(path, Kind.IMAGE, backend_args)
    if isinstance(image, Finding):
        return [image]
    found = size_as_loaded(image)
    if size and size != found:
        return [Finding(Kind.IMAGE_SIZE, path, f'is {found[0]} x {found[1]} pixels (height x width), but '
                        f'{size[0]} x {size[1]} in the annotations')]
    return []
