"""Reads regions of large TIFF files, so that an image need not fit into memory."""
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from openmmlab_tools.pictures.images import EXIF_ORIENTATION, explained

KEPT = 1 << 28  # bytes of the parts (tiles or strips) of a file that are kept, since neighbouring regions share them
BYTES = 7  # of memory for a pixel of an image that is read as a whole: 4 in Pillow, then 3 in numpy


class Regions:
    """A TIFF file of which only the needed pixels are read: `regions[rows, columns]` returns `(h, w, 3)`, RGB, uint8.

    Attributes:
        size: Height and width of the image.
    """

    def __init__(self, path: Path) -> None:
        from tifffile import TiffFile
        self.path, self.file = path, TiffFile(path)
        page: Any = self.file.pages[0]
        self.page, self.size = page, (page.imagelength, page.imagewidth)
        self._parts = OrderedDict[int, np.ndarray]()
        self.part = page.chunks[:2]  # height and width of a tile, or of a strip
        self.columns = -(-self.size[1] // self.part[1])

    def __str__(self) -> str:
        return str(self.path)

    @property
    def is_readable(self) -> bool:
        """True if the file contains a single image, grey or RGB with 8 bits, without rotation, that can be decoded in
        parts that fit into memory.
        """
        tags, samples = self.page.tags, self.page.samplesperpixel
        plain = (self.page.dtype == np.uint8 and self.page.photometric.name in ('MINISBLACK', 'RGB')
                 and samples == (3 if self.page.photometric.name == 'RGB' else 1)
                 and (samples == 1 or self.page.planarconfig.name == 'CONTIG'))
        turned = EXIF_ORIENTATION in tags and tags[EXIF_ORIENTATION].value != 1
        small = self.page.is_memmappable or 3 * self.part[0] * self.part[1] <= KEPT
        return len(self.file.pages) == 1 and plain and not turned and small and self[:1, :1].size > 0

    def __getitem__(self, region: tuple[slice, slice]) -> np.ndarray:
        with explained(self.path):
            rows, columns = (range(*span.indices(length)) for span, length in zip(region, self.size, strict=True))
            pixels = np.zeros((len(rows), len(columns), 3), np.uint8)
            if self.page.is_memmappable:  # not compressed, and often a single strip
                whole = np.memmap(self.path, np.uint8, 'r', self.page.dataoffsets[0],
                                  (*self.size, self.page.samplesperpixel))
                pixels[:] = whole[region]
                return pixels
            height, width = self.part
            for i in range(rows.start // height, -(-rows.stop // height)):
                for j in range(columns.start // width, -(-columns.stop // width)):
                    part = self._read(i * self.columns + j)
                    top, left = i * height, j * width
                    first, begin = max(rows.start - top, 0), max(columns.start - left, 0)
                    piece = part[first:rows.stop - top, begin:columns.stop - left]
                    y, x = top + first - rows.start, left + begin - columns.start
                    pixels[y:y + piece.shape[0], x:x + piece.shape[1]] = piece
            return pixels

    def _read(self, index: int) -> np.ndarray:
        """Returns a tile or strip, `(h, w, 1 or 3)`."""
        if index not in self._parts:
            handle = self.file.filehandle
            handle.seek(self.page.dataoffsets[index])
            content = handle.read(self.page.databytecounts[index])
            decoded, _, _ = self.page.decode(content, index, jpegtables=self.page.jpegtables)
            # A missing part is empty, which means zeros.
            self._parts[index] = np.zeros((*self.part, 1), np.uint8) if decoded is None else decoded[0]
            if len(self._parts) > max(1, KEPT // (3 * self.part[0] * self.part[1])):
                self._parts.popitem(last=False)
        return self._parts[index]


def open_regions(image: object) -> Regions | None:
    """Opens an image to read it in regions; None unless it is a TIFF file that allows it, and tifffile is installed.

    What is open already is returned.
    """
    if isinstance(image, Regions):
        return image
    if not isinstance(image, str | Path) or Path(image).suffix.lower() not in ('.tif', '.tiff'):
        return None
    with suppress(Exception):  # tifffile raises errors of many types; Pillow then says what is wrong
        regions = Regions(Path(image))
        if regions.is_readable:
            return regions
    return None
