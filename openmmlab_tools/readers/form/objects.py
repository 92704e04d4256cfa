"""Shapes of objects, as labelling tools have them, and the same as COCO has them."""
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from openmmlab_tools.errors import UserError
from openmmlab_tools.pictures.masks import polygon_area
from openmmlab_tools.texts import shown

CIRCLE = np.linspace(0, 2 * np.pi, 32, endpoint=False)
LARGEST = 1e7  # pixels: no coordinate is larger


Extent = tuple[float, float, float, float]  # left, top, right and bottom, in pixels


@dataclass(frozen=True)
class Shape:
    """The shape of an object: box corners (left, top, right, bottom), polygons `(N, 2)`, or a mask.

    A mask is `(h, w)`, bool, and has the place of its first pixel. Coordinates are pixels, or with `in_shares` shares
    of the image's width and height.
    """
    corners: Sequence[float] = ()
    parts: Sequence[np.ndarray] = ()
    pixels: np.ndarray | None = None
    place: tuple[int, int] = (0, 0)
    in_shares: bool = False
    counts_from_1: bool = False  # and the last pixel belongs to the box
    degrees: float = 0  # by which polygons are turned clockwise around `pivot`
    pivot: tuple[float, float] = (0, 0)

    @property
    def is_swapped(self) -> bool:
        return bool(self.corners) and (self.corners[0] > self.corners[2] or self.corners[1] > self.corners[3])

    def keys(self, size: tuple[int, int]) -> dict[str, Any]:
        """Returns the keys of COCO for it in an image of a width and height, to which it is clipped."""
        if self.pixels is not None:
            whole = np.zeros(size[::-1], bool)
            rows, columns = (slice(max(start, 0), max(start + length, 0)) for start, length in zip(
                reversed(self.place), self.pixels.shape, strict=True))
            part = whole[rows, columns]
            top, left = max(-self.place[1], 0), max(-self.place[0], 0)
            part[:] = self.pixels[top:top + part.shape[0], left:left + part.shape[1]]
            return mask(whole)
        return polygons(self._polygons(size), size) if self.parts else box(*self._box(size), size)

    def extent(self, size: tuple[int, int]) -> Extent:
        """Returns the box around it in an image of a width and height, also beyond the border."""
        if self.pixels is not None:
            rows, columns = (np.flatnonzero(self.pixels.any(axis=axis)) for axis in (1, 0))
            if not len(rows):
                return 0, 0, 0, 0
            x, y = self.place
            return float(x + columns[0]), float(y + rows[0]), float(x + columns[-1] + 1), float(y + rows[-1] + 1)
        if self.parts:
            points = np.concatenate(self._polygons(size))
            (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
            return left, top, right, bottom
        return self._box(size)

    def _polygons(self, size: tuple[int, int]) -> list[np.ndarray]:
        unit = np.array(size if self.in_shares else (1, 1))
        x, y = (np.array(self.pivot) * unit).tolist()
        return [turned(part * unit - (x, y), x, y, 1, 1, self.degrees) if self.degrees else part * unit
                for part in self.parts]

    def _box(self, size: tuple[int, int]) -> Extent:
        width, height = size if self.in_shares else (1, 1)
        left, right = sorted((self.corners[0] * width, self.corners[2] * width))
        top, bottom = sorted((self.corners[1] * height, self.corners[3] * height))
        return left - self.counts_from_1, top - self.counts_from_1, right, bottom


def points_of(value: object, where: str) -> np.ndarray:
    """Returns `(N, 2)`, float64, for pairs or numbers in turn, also texts; else a UserError that begins with `where`.
    """
    try:
        points = np.asarray(value, np.float64)
        points = points.reshape(-1, 2) if points.ndim == 1 else points
        if points.ndim == 2 and points.shape[1] == 2 and len(points) and (abs(points) <= LARGEST).all():
            return points
    except (ValueError, TypeError, OverflowError):
        pass
    raise UserError(f'{where} has {shown(value)} for points, but these are pairs of numbers: correct it.')


def number_of(value: object, where: str, name: str) -> float:
    """Returns a number that may be a text; raises a UserError if it is none, or not finite."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else np.nan
    except (ValueError, OverflowError):
        number = np.nan
    if not abs(number) <= LARGEST:
        raise UserError(f'{where} has {shown(value)} for {name}, which is not a number: correct it.')
    return number


def size_of(width: object, height: object, where: str) -> tuple[int, int]:
    """Returns a size in whole pixels; 0 where none is stated. See `number_of`."""
    return round(number_of(width or 0, where, 'width')), round(number_of(height or 0, where, 'height'))


def box(left: float, top: float, right: float, bottom: float, size: tuple[int, int]) -> dict[str, Any]:
    """Returns `bbox` and `area` of a box that is clipped to its image; corners may be in any order."""
    xs, ys = ([min(max(side, 0), most) for side in sorted(pair)]
              for pair, most in zip(((left, right), (top, bottom)), size, strict=True))
    sides = [round(float(value), 2) for value in (xs[0], ys[0], xs[1] - xs[0], ys[1] - ys[0])]
    return dict(bbox=sides, area=sides[2] * sides[3], iscrowd=0)


def polygons(parts: Sequence[np.ndarray], size: tuple[int, int]) -> dict[str, Any]:
    """Returns the keys of an object that consists of polygons, `(N, 2)` each, clipped to the image."""
    parts = [part for part in (_clip(part, size).round(2) for part in parts) if len(part) >= 3]
    if not parts:
        return box(0, 0, 0, 0, size)
    (left, top), (right, bottom) = np.concatenate(parts).min(axis=0), np.concatenate(parts).max(axis=0)
    flat = [part.ravel().tolist() for part in parts]
    return dict(box(left, top, right, bottom, size), area=sum(map(polygon_area, flat)), segmentation=flat)


def _clip(points: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Clips a polygon, `(N, 2)`, at the borders of its image (Sutherland and Hodgman, 1974)."""
    for axis, border, sign in ((0, 0, 1), (0, size[0], -1), (1, 0, 1), (1, size[1], -1)):
        depth = sign * (points[:, axis] - border)  # inside from 0 on
        if (depth >= 0).all():
            continue
        clipped = []
        for index in range(len(points)):
            last = index - 1
            if depth[last] * depth[index] < 0:
                share = depth[last] / (depth[last] - depth[index])
                clipped.append(points[last] + share * (points[index] - points[last]))
            if depth[index] >= 0:
                clipped.append(points[index])
        points = np.reshape(clipped, (-1, 2))
    return points


def rotated(x: float, y: float, width: float, height: float, degrees: float) -> np.ndarray:
    """Returns the corners of a box around a centre, turned clockwise, `(4, 2)`."""
    return turned([(-1, -1), (1, -1), (1, 1), (-1, 1)], x, y, width / 2, height / 2, degrees)


def ellipse(x: float, y: float, radius_x: float, radius_y: float, degrees: float = 0) -> np.ndarray:
    """Returns a polygon of 32 points on an ellipse, turned clockwise around its centre, `(32, 2)`."""
    return turned(np.stack([np.cos(CIRCLE), np.sin(CIRCLE)], axis=1), x, y, radius_x, radius_y, degrees)


def turned(points: Any, x: float, y: float, factor_x: float, factor_y: float, degrees: float) -> np.ndarray:
    """Scales points, turns them around the origin, clockwise since y points downwards, and moves them."""
    cosine, sine = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.array(points) * (factor_x, factor_y) @ np.array([[cosine, sine], [-sine, cosine]]) + (x, y)


def merged(parts: Sequence[dict[str, Any]], size: tuple[int, int]) -> dict[str, Any]:
    """Joins several shapes into the keys of one object: a box around all boxes, or else the union of all pixels."""
    if len(parts) == 1:
        return parts[0]
    shapes = [part.get('segmentation') for part in parts]
    if all(isinstance(shape, list) for shape in shapes):
        return polygons([np.reshape(part, (-1, 2)) for shape in shapes for part in shape or ()], size)
    if any(shapes):
        encoded = [[segmentation] if isinstance(segmentation, dict) else coco_mask.frPyObjects(
            segmentation or [[x, y, x + w, y, x + w, y + h, x, y + h]], size[1], size[0])
            for segmentation, (x, y, w, h) in ((keys.get('segmentation'), keys['bbox']) for keys in parts)]
        return mask(coco_mask.decode(coco_mask.merge([rle for some in encoded for rle in some])).astype(bool))
    (left, top), (right, bottom) = (
        function([np.add(part['bbox'][:2], np.multiply(part['bbox'][2:], end)) for part in parts], axis=0).tolist()
        for function, end in ((np.min, 0), (np.max, 1)))
    return box(left, top, right, bottom, size)


def mask(pixels: np.ndarray) -> dict[str, Any]:
    """Returns the keys of an object with a mask, `(H, W)`, bool."""
    encoded = coco_mask.encode(np.asfortranarray(pixels, np.uint8))
    return dict(bbox=[float(value) for value in coco_mask.toBbox(encoded)], area=float(coco_mask.area(encoded)),
                iscrowd=0,
                segmentation=dict(size=list(encoded['size']), counts=encoded['counts'].decode()))
