"""Predicts large images in overlapping tiles. Each tile decides about its core.

The core is the part of a tile that is nearer to the middle of this tile than to the middle of any other tile. A pixel
has the class that was predicted in the tile whose core contains the pixel. An object counts if its centre is in, or
near, the core of a tile in which it was predicted. Predictions of the same object in several tiles are joined (see
`Seams`). The box and mask come from a tile that contains the whole object, or else from the union of its pieces.

Why not other tools: mmdet's `shift_predictions` requires SAHI and drops the masks; with masks, it would need a mask of
the whole image for each object. SAHI wraps mmdet's models and installs OpenCV, Shapely and other packages. mmseg's mode
'slide' stores the scores of all classes for all pixels. Here memory contains one batch of tiles, the image, boxes with
RLE masks, and the label map.
"""
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as coco_mask

from openmmlab_tools.data.scales import TileScale
from openmmlab_tools.pictures.prediction import Prediction

JITTER = 3.5  # pixels
ALIKE = 0.45  # of what two tiles see of an object, widths and heights have at least this in common; 1 if they are equal
OUTWARD = np.array([-1, -1, 1, 1], np.float32)  # makes each edge of a box grow with the box
OTHER = [2, 3, 0, 1]  # the edge on the other side


class Tile(NamedTuple):
    """The rows and columns of a tile in its image, and the rows and columns of the tile's core."""
    rows: slice
    columns: slice
    core_rows: slice
    core_columns: slice


class Tiling(NamedTuple):
    """Tiles with `side` x `side` pixels. Neighbouring tiles overlap by at least `overlap` pixels."""
    side: int
    overlap: int
    scale: TileScale = 'train'

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


def slack_of(boxes: np.ndarray) -> np.ndarray:
    """Returns how wrong each edge may be, `(..., 4)`."""
    return np.maximum(JITTER, (boxes + boxes[..., OTHER]) / 6)


def are_near(boxes: np.ndarray, cores: np.ndarray) -> np.ndarray:
    """Returns whether the centre of each box is in the core of a tile, or near it, `(...,)`."""
    return ((boxes - boxes[..., OTHER]) / 2 <= cores + slack_of(boxes)).all(axis=-1)


class Seams:
    """Finds the boxes in neighbouring tiles that belong to the same object.

    Boxes from different tiles belong together if they have the same class and agree: each edge may differ by `JITTER`,
    or by a sixth of the side. A box at the border of its tile is a piece, because the object may continue beyond the
    border. A piece agrees with a box that contains it, and with a piece in the next tile. Boxes from the same tile
    never belong together.

    If neighbouring tiles do not overlap, two objects on both sides of a border can look like the pieces of one object,
    if less than 14 pixels are between them. With an overlap as large as the objects, one tile contains each object.

    Args:
        boxes: `(N, 4)`, in pixels of the image, each edge times `OUTWARD`.
        labels: `(N,)`, their classes.
        tiles: `(N,)`, the indices of their tiles.
        frames: `(T, 4)`, the tiles, each edge times `OUTWARD`.
        size: Height and width of the image.

    Attributes:
        is_piece: `(N,)`, whether an edge is where the tile ends, but not the image.
    """

    def __init__(self, boxes: np.ndarray, labels: np.ndarray, tiles: np.ndarray, frames: np.ndarray,
                 size: tuple[int, int]) -> None:
        self.edges, self.labels, self.tiles, self.frames = boxes, labels, tiles, frames
        self.slack = slack_of(boxes)
        self.cut = (boxes >= frames[tiles] - JITTER) & (frames < (0, 0, *size[::-1]))[tiles]
        self.is_piece = self.cut.any(axis=1)
        # At the border where a piece is cut, its true edges are unknown.
        self.exact = ~(self.cut | self.cut[:, [1, 0, 1, 0]] | self.cut[:, [3, 2, 3, 2]])
        self.reach = np.where(self.cut, np.maximum(boxes, frames[tiles]), boxes) + JITTER

    def objects(self) -> list[list[int]]:
        """Returns the indices of the boxes of each object, at most one box from each tile.

        The surest pairs are joined first: whole boxes, then boxes in tiles with a large overlap, then similar boxes.
        """
        links = {pair: rank for tile in range(len(self.frames)) for pair, rank in self._links(tile)}
        groups = [[index] for index in range(len(self.edges))]
        for pair in sorted(links, key=links.__getitem__):
            mine, others = (groups[index] for index in pair)
            if set(self.tiles[mine]).isdisjoint(self.tiles[others]) and all(
                    (min(index, other), max(index, other)) in links for index in mine for other in others
                    if not (self.is_piece[index] and self.is_piece[other])):
                mine += others
                for index in others:
                    groups[index] = mine
        return [group for index, group in enumerate(groups) if index == group[0]]

    def _links(self, tile: int) -> Iterator[tuple[tuple[int, int], tuple[int, float, float]]]:
        """Yields pairs of boxes that agree, one from this tile and one from a later tile, and their sort keys."""
        seen = self.edges + self.frames[tile, OTHER] >= -JITTER
        a, b = np.flatnonzero(self.tiles == tile)[:, None], np.flatnonzero(seen.all(axis=1) & (self.tiles > tile))
        larger, slack = self.edges[a] - self.edges[b], np.minimum(self.slack[a], self.slack[b])
        wrong = np.where(larger > 0, self.exact[b], self.exact[a]) * abs(larger)
        # Widths and heights of the region that both tiles contain.
        frames = self.frames[self.tiles[b]]
        mine, others = np.minimum(self.reach[a], frames + JITTER), np.minimum(self.reach[b], self.frames[tile] + JITTER)
        lengths, other_lengths, common, areas = (spans[..., :2] + spans[..., 2:] for spans in (
            mine, others, np.minimum(mine, others), np.minimum(frames, self.frames[tile])))
        agree = (wrong <= 2 * slack).all(axis=2) & (self.labels[a] == self.labels[b]) & (
            common >= ALIKE * np.sqrt(abs(lengths * other_lengths))).all(axis=2)
        differ = (abs(larger) * ~(self.cut[a] | self.cut[b]) / slack).sum(axis=2)
        for row, column in np.argwhere(agree):
            box, other = a[row, 0], b[column]
            yield (box, other), (self.is_piece[[box, other]].sum(), -areas[column].prod(), differ[row, column])


def join(predictions: Iterable[Prediction], tiles: Sequence[Tile], size: tuple[int, int]) -> Prediction:
    """Joins the predictions of all tiles of an image of a size, height and width.

    Label maps are copied as they come, so that an iterator has one batch of them in memory.
    """
    following = iter(predictions)
    first = next(following)
    if first.label_map is not None:
        label_map = np.zeros(size, np.min_scalar_type(len(first.classes) - 1))
        for part, tile in zip(chain([first], following), tiles, strict=True):
            assert part.label_map is not None
            rows, columns = tile.core_rows, tile.core_columns
            label_map[rows, columns] = part.label_map[
                rows.start - tile.rows.start:rows.stop - tile.rows.start,
                columns.start - tile.columns.start:columns.stop - tile.columns.start]
        return replace(first, size=size, label_map=label_map)
    parts = [first, *following]
    frames, cores = (OUTWARD * [(columns.start, rows.start, columns.stop, rows.stop) for rows, columns in spans]
                     for spans in ([tile[:2] for tile in tiles], [tile[2:] for tile in tiles]))
    boxes, labels, scores, indices = (np.concatenate(values) for values in zip(*(
        (part.boxes - frames[index, [0, 1, 0, 1]], part.labels, part.scores, np.full_like(part.labels, index))
        for index, part in enumerate(parts)), strict=True))
    seams = Seams(boxes * OUTWARD, labels, indices, frames, size)
    counts, masks = are_near(seams.edges, cores[seams.tiles]), [mask for part in parts for mask in part.masks or ()]
    objects: list[tuple[int, list[int], np.ndarray]] = []  # the best box, all that make the object, its edges
    for group in seams.objects():
        best = group[np.lexsort((scores[group], counts[group], ~seams.is_piece[group]))[-1]]
        pieces = group if seams.is_piece[best] else [best]
        edges = seams.edges[pieces].max(axis=0)
        if counts[group].any() or are_near(edges, cores[seams.tiles[group]]).any():
            objects.append((best, pieces, edges))
    objects.sort(key=lambda entry: -scores[entry[0]])
    order = [best for best, _, _ in objects]

    def mask_of(index: int) -> dict[str, Any]:
        tile = tiles[seams.tiles[index]]
        return move_mask(masks[index], tile.rows.start, tile.columns.start, size)

    def union(parts: list[dict[str, Any]]) -> dict[str, Any]:
        return parts[0] if len(parts) == 1 else dict(parts[0], counts=coco_mask.merge(parts)['counts'].decode())

    return replace(
        first, size=size, labels=labels[order], scores=scores[order],
        boxes=np.array([edges for _, _, edges in objects], np.float32).reshape(-1, 4) * OUTWARD,
        masks=None if first.masks is None else [union([*map(mask_of, pieces)]) for _, pieces, _ in objects])


def move_mask(mask: dict[str, Any], top: int, left: int, size: tuple[int, int]) -> dict[str, Any]:
    """Moves the RLE of a mask into an image of a size, height and width, without a mask of the image in memory."""
    # RLE goes down one column after another. The zeros above and below end the runs of each column.
    edges = np.diff(np.pad(coco_mask.decode(mask).astype(np.int8), ((1, 1), (0, 0))), axis=0).T
    (columns, begins), (_, ends) = np.nonzero(edges > 0), np.nonzero(edges < 0)
    runs = np.stack([begins, ends], axis=1) + (columns[:, None] + left) * size[0] + top
    counts = np.diff(runs.flatten(), prepend=0, append=size[0] * size[1])
    moved = coco_mask.frPyObjects(dict(size=list(size), counts=counts.tolist()), *size)
    return dict(size=list(size), counts=moved['counts'].decode())
