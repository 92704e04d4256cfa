"""Predicts large images in overlapping tiles, each of which answers for its core.

The core is the part of a tile that is nearer to its middle than to those of its neighbours. A pixel has the class that
the tile of its core found. A box counts if its centre is in the core of its tile. So an object that is not larger than
the overlap is taken from a tile that has all of it, and pieces of it that other tiles found at their border are
dropped. Of larger objects there may be several pieces. Last, non-maximum suppression for each class, with an IoU of
0.5, removes what two tiles found both.

mmdet's `shift_predictions` needs SAHI, forgets the masks, and would keep one of the whole image for each object. SAHI
has its own models around mmdet's, and installs OpenCV, Shapely and others. mmseg's mode 'slide' holds scores of all
classes for all pixels. Here memory holds one batch of tiles, the image, boxes with RLE masks, and the label map.
"""
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from mmcv.ops import batched_nms
from pycocotools import mask as coco_mask

from .arguments import check_number
from .errors import UserError
from .prediction import Prediction

IOU = 0.5  # of boxes that are one object


class Tile(NamedTuple):
    """Rows and columns of an image that are one tile, and those of its core."""
    rows: slice
    columns: slice
    core_rows: slice
    core_columns: slice


class Tiling(NamedTuple):
    """Tiles of `side` x `side` pixels, of which neighbours have at least `overlap` pixels in common."""
    side: int
    overlap: int

    def is_for(self, size: tuple[int, int]) -> bool:
        """Returns whether an image of a height and width is larger than a tile."""
        return max(size) > self.side

    def tiles(self, size: tuple[int, int]) -> list[Tile]:
        """Returns the tiles of an image by its height and width, row by row; together, their cores are the image."""
        return [Tile(rows, columns, core_rows, core_columns) for rows, core_rows in self._spans(size[0])
                for columns, core_columns in self._spans(size[1])]

    def _spans(self, length: int) -> list[tuple[slice, slice]]:
        """Returns tiles and cores along one side of an image, with the same distance from each to the next."""
        if length <= self.side:
            return [(slice(0, length), slice(0, length))]
        count = -(-(length - self.overlap) // (self.side - self.overlap))
        starts = np.linspace(0, length - self.side, count).round().astype(int).tolist()
        middles = [(start + self.side + following) // 2 for start, following in pairwise(starts)]
        return [(slice(start, start + self.side), slice(begin, end))
                for start, begin, end in zip(starts, [0, *middles], [*middles, length], strict=True)]


def make_tiling(side: int | None, overlap: int | None = None) -> Tiling | None:
    """Returns the tiling of a side and an overlap, by default a quarter of the side; None without a side.

    Raises:
        UserError: If a number does not fit.
    """
    if side is None:
        if overlap is not None:
            raise UserError(f'overlap is {overlap}, but there are no tiles: give the side of a tile, too.')
        return None
    check_number('tile', side, 1)
    overlap = side // 4 if overlap is None else overlap
    check_number('overlap', overlap, 0, side - 1)
    return Tiling(side, overlap)


def join(parts: Sequence[Prediction], tiles: Sequence[Tile], size: tuple[int, int]) -> Prediction:
    """Joins the predictions of all tiles of an image of a size, height and width."""
    first = parts[0]
    if first.label_map is not None:
        label_map = np.zeros(size, np.min_scalar_type(len(first.classes) - 1))
        for part, tile in zip(parts, tiles, strict=True):
            assert part.label_map is not None
            rows, columns = tile.core_rows, tile.core_columns
            label_map[rows, columns] = part.label_map[
                rows.start - tile.rows.start:rows.stop - tile.rows.start,
                columns.start - tile.columns.start:columns.stop - tile.columns.start]
        return replace(first, size=size, label_map=label_map)
    moved = [_moved(part, tile, size) for part, tile in zip(parts, tiles, strict=True)]
    boxes, labels, scores = (np.concatenate([getattr(part, name) for part in moved])
                             for name in ('boxes', 'labels', 'scores'))
    masks = None if first.masks is None else [mask for part in moved for mask in part.masks or ()]
    whole = replace(first, size=size, boxes=boxes, labels=labels, scores=scores, masks=masks)
    if not len(boxes):
        return whole
    _, kept = batched_nms(torch.from_numpy(boxes), torch.from_numpy(scores), torch.from_numpy(labels),
                          dict(type='nms', iou_threshold=IOU))
    return whole.take(kept.numpy())


def _moved(part: Prediction, tile: Tile, size: tuple[int, int]) -> Prediction:
    """Returns the boxes and masks of a tile whose centres are in its core, in pixels of the image."""
    assert part.boxes is not None
    boxes = part.boxes + np.array([tile.columns.start, tile.rows.start] * 2, np.float32)
    x, y = (boxes[:, :2] + boxes[:, 2:]).T / 2
    part = replace(part, boxes=boxes).take(np.flatnonzero(
        (tile.core_columns.start <= x) & (x < tile.core_columns.stop)
        & (tile.core_rows.start <= y) & (y < tile.core_rows.stop)))
    masks = part.masks and [move_mask(mask, tile.rows.start, tile.columns.start, size) for mask in part.masks]
    return replace(part, size=size, masks=masks)


def move_mask(mask: dict[str, Any], top: int, left: int, size: tuple[int, int]) -> dict[str, Any]:
    """Moves the RLE of a mask into an image of a size, height and width, without a mask of the image in memory."""
    # RLE goes down one column after another. The zeros above and below end the runs of each column.
    edges = np.diff(np.pad(coco_mask.decode(mask).astype(np.int8), ((1, 1), (0, 0))), axis=0).T
    (columns, begins), (_, ends) = np.nonzero(edges > 0), np.nonzero(edges < 0)
    runs = np.stack([begins, ends], axis=1) + (columns[:, None] + left) * size[0] + top
    counts = np.diff(runs.flatten(), prepend=0, append=size[0] * size[1])
    moved = coco_mask.frPyObjects(dict(size=list(size), counts=counts.tolist()), *size)
    return dict(size=list(size), counts=moved['counts'].decode())
