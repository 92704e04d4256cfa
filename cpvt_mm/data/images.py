"""Checks image files, and label maps in ADE20K's layout."""
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
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


def has_16_bits(image: Image.Image) -> bool:
    """Returns whether an image has 16 bits per channel, which mmcv's loader reads as 8.

    Args:
        image: The result of `Image.open`, before its pixels are loaded; Pillow discards the information when loading.
    """
    # Pillow's raw mode of the file, such as 'I;16', 'RGB;16B' or 'RGB;16L'; 'BGR;16' has 5 bits per channel.
    return any(re.search(r'I;16|;16[BLN]', str(tile[-1])) for tile in getattr(image, 'tile', ()))


def size_as_loaded(image: Image.Image) -> tuple[int, int]:
    """Returns height and width after the rotation in the file's EXIF data, which mmcv's loader applies."""
    width, height = image.size
    return (width, height) if image.getexif().get(EXIF_ORIENTATION, 1) >= 5 else (height, width)


def check_image(path: str, size: tuple[int, int] | None = None, backend_args: dict[str, Any] | None = None
                ) -> list[Finding]:
    """Finds faults of an image file.

    Args:
        path: The file.
        size: Expected height and width. Defaults to None: any size.
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


@dataclass(frozen=True)
class Labels:
    """The rule by which mmseg converts the values of a label map to classes.

    Attributes:
        num_classes: Classes are 0 to `num_classes - 1`.
        reduce_zero_label: Whether value 0 is ignored, and value 1 is class 0. Defaults to False.
        label_map: Old class -> new class, if only some classes of a dataset are used. Defaults to None.
        ignored: Labels that mean no class. Defaults to 255 only.
    """
    num_classes: int
    reduce_zero_label: bool = False
    label_map: Mapping[int, int] | None = None
    ignored: Collection[int] = (255,)

    def unknown(self, values: Iterable[int]) -> list[int]:
        """Returns the values of a label map that are neither a class nor ignored."""
        return [value for value in map(int, values) if not self._is_known(value)]

    def _is_known(self, value: int) -> bool:
        label = value
        if self.reduce_zero_label:
            label = 255 if value in (0, 255) else value - 1
        label = (self.label_map or {}).get(label, label)
        return label in self.ignored or 0 <= label < self.num_classes


def check_pair(image_path: str, label_path: str, labels: Labels | None, backend_args: dict[str, Any] | None = None
               ) -> list[Finding]:
    """Finds faults of an image and its label map; if `labels` is None, the map may have any values."""
    image, label_map = decode(image_path, Kind.IMAGE, backend_args), decode(label_path, Kind.LABEL_MAP, backend_args)
    findings = [result for result in (image, label_map) if isinstance(result, Finding)]
    if isinstance(label_map, Finding):
        return findings
    values = np.asarray(label_map).squeeze()
    if values.ndim != 2:
        return [*findings, Finding(Kind.LABEL_MAP, label_path, f'has {values.shape[-1]} channels, but a label map has '
                                   'one')]
    size = values.shape if isinstance(image, Finding) else size_as_loaded(image)
    if values.shape != size:
        findings.append(Finding(Kind.LABEL_MAP_SIZE, label_path, f'is {values.shape[0]} x {values.shape[1]} pixels '
                                f'(height x width), but its image {size[0]} x {size[1]}'))
    if labels and (unknown := labels.unknown(np.unique(values))):
        findings.append(Finding(Kind.LABEL, label_path, f'has {", ".join(map(str, unknown))}, but there are '
                                f'{labels.num_classes} classes' + (' and 0 is ignored' * labels.reduce_zero_label)))
    return findings
