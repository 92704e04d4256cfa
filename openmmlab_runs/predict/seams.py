"""Which boxes that overlapping tiles found are one object.

Boxes of one class from several tiles are one object if they agree: each edge may be wrong by `JITTER` pixels, or by a
sixth of the side. A box at the border of its tile is a piece, which goes on there: it agrees with a box that contains
it, and with a piece beside it. Boxes of one tile are several objects. Boxes are `(N, 4)`, each edge times `OUTWARD`.
"""
from collections.abc import Iterator

import numpy as np

JITTER = 3.5
ALIKE = 0.45  # of what two tiles see of an object, widths and heights have at least this in common; 1 if they are equal
OUTWARD = np.array([-1, -1, 1, 1], np.float32)  # makes each edge of a box grow with the box
OTHER = [2, 3, 0, 1]  # the edge on the other side


def slack_of(boxes: np.ndarray) -> np.ndarray:
    """Returns how wrong each edge may be, `(..., 4)`."""
    return np.maximum(JITTER, (boxes + boxes[..., OTHER]) / 6)


def are_near(boxes: np.ndarray, cores: np.ndarray) -> np.ndarray:
    """Returns whether the centre of each box is in the core of a tile, or near it, `(...,)`."""
    return ((boxes - boxes[..., OTHER]) / 2 <= cores + slack_of(boxes)).all(axis=-1)


class Seams:
    """The boxes of all tiles of an image.

    Args:
        boxes: `(N, 4)`, in pixels of the image.
        labels: `(N,)`, their classes.
        tiles: `(N,)`, the indices of their tiles.
        frames: `(T, 4)`, the tiles.
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
        # A piece may be larger than it looks where it is cut, and along that border.
        self.exact = ~(self.cut | self.cut[:, [1, 0, 1, 0]] | self.cut[:, [3, 2, 3, 2]])
        self.reach = np.where(self.cut, np.maximum(boxes, frames[tiles]), boxes) + JITTER

    def objects(self) -> list[list[int]]:
        """Returns the boxes of each object, of a tile at most one.

        What is surest comes together first: whole boxes, then tiles with the most in common, then boxes alike.
        """
        links = {pair: rank for tile in range(len(self.frames)) for pair, rank in self._links(tile)}
        groups = [[index] for index in range(len(self.edges))]
        for pair in sorted(links, key=links.__getitem__):
            mine, others = (groups[index] for index in pair)
            if set(self.tiles[mine]).isdisjoint(self.tiles[others]) and all(
                    (min(one, other), max(one, other)) in links for one in mine for other in others
                    if not (self.is_piece[one] and self.is_piece[other])):
                mine += others
                for index in others:
                    groups[index] = mine
        return [group for index, group in enumerate(groups) if index == group[0]]

    def _links(self, tile: int) -> Iterator[tuple[tuple[int, int], tuple[int, float, float]]]:
        """Yields pairs of boxes of a tile and of later ones that agree, and what they are sorted by."""
        seen = self.edges + self.frames[tile, OTHER] >= -JITTER
        a, b = np.flatnonzero(self.tiles == tile)[:, None], np.flatnonzero(seen.all(axis=1) & (self.tiles > tile))
        larger, slack = self.edges[a] - self.edges[b], np.minimum(self.slack[a], self.slack[b])
        wrong = np.where(larger > 0, self.exact[b], self.exact[a]) * abs(larger)
        # Widths and heights of what both tiles see.
        frames = self.frames[self.tiles[b]]
        mine, others = np.minimum(self.reach[a], frames + JITTER), np.minimum(self.reach[b], self.frames[tile] + JITTER)
        lengths, other_lengths, common, areas = (one[..., :2] + one[..., 2:] for one in (
            mine, others, np.minimum(mine, others), np.minimum(frames, self.frames[tile])))
        agree = (wrong <= 2 * slack).all(axis=2) & (self.labels[a] == self.labels[b]) & (
            common >= ALIKE * np.sqrt(abs(lengths * other_lengths))).all(axis=2)
        differ = (abs(larger) * ~(self.cut[a] | self.cut[b]) / slack).sum(axis=2)
        for row, column in np.argwhere(agree):
            one, other = a[row, 0], b[column]
            yield (one, other), (self.is_piece[[one, other]].sum(), -areas[column].prod(), differ[row, column])
