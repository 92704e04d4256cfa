"""Writes a toy dataset: textured shapes on textured backgrounds, as COCO instances and as label maps.

Texture, outline and hue show the class, except that a sun looks like a ball, and a kite like a boat. Suns and kites are
in the upper half of the image, balls and boats in the lower half. A model without position information confuses them.
"""
import argparse
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask
from rich.progress import track

from openmmlab_tools.errors import UserError, exit_on_error
from openmmlab_tools.files import held, write_image

CLASSES = ('sun', 'ball', 'kite', 'boat', 'square')
UPPER, LOWER = ('sun', 'kite'), ('ball', 'boat')
PALETTE = ((230, 60, 60), (60, 180, 75), (65, 105, 225), (250, 190, 40), (160, 60, 200))

Mask = NDArray[np.bool_]
Image = NDArray[np.uint8]


@dataclass(frozen=True)
class Shape:
    """The appearance of a class: corners in polar coordinates (degrees, radius), texture, and hue in degrees."""
    corners: tuple[tuple[float, float], ...]
    texture: Callable[[NDArray, NDArray], Mask]
    hue: float


# A texture gets pixel coordinates along the shape's own axes, and returns which pixels have the dark colour.
DISC = Shape(tuple((angle, 1) for angle in range(0, 360, 10)), lambda u, v: (u % 10 - 5)**2 + (v % 10 - 5)**2 < 10, 15)
DIAMOND = Shape(tuple(zip((0, 90, 180, 270), (1, .62, 1, .62), strict=True)), lambda u, v: u < 0, 255)
SHAPES = {
    'sun': DISC, 'ball': DISC, 'kite': DIAMOND, 'boat': DIAMOND,
    'square': Shape(tuple((angle, 1) for angle in (45, 135, 225, 315)),
                    lambda u, v: (u // 6 + v // 6) % 2 == 0, 135),
}


def background(rng: np.random.Generator, height: int, width: int) -> NDArray:
    """Draws blurred noise with random colours and scale: `(height, width, 3)` floats from 0 to 255."""
    cells = rng.integers(3, 24)
    coarse = rng.uniform(40, 200, 3) + rng.normal(0, 28, (height // cells + 2, width // cells + 2, 3))
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth + rng.normal(0, rng.uniform(2, 10), (height, width, 1)), 0, 255)


def add_noise(rng: np.random.Generator, canvas: NDArray) -> Image:
    """Adds camera noise to a canvas `(H, W, 3)`; returns uint8."""
    return np.clip(canvas + rng.normal(0, 6, canvas.shape), 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class Sprite:
    """A shape at a position: center and radius in pixels, rotation in radians, and the two colours of its texture."""
    shape: Shape
    x: float
    y: float
    radius: float
    turn: float
    bright: NDArray
    dark: NDArray

    def paint(self, canvas: NDArray) -> Mask:
        """Paints the shape into `canvas`, clipped at its border, and returns the mask of painted pixels."""
        angles, radii = np.array(self.shape.corners).T
        angles = np.deg2rad(angles) + self.turn
        corners = np.stack([self.x + self.radius * radii * np.cos(angles),
                            self.y + self.radius * radii * np.sin(angles)], 1)
        filled = np.zeros(canvas.shape[:2], np.uint8)
        cv2.fillPoly(filled, [np.round(corners).astype(np.int32)], 1)
        mask = filled.astype(bool)

        rows, columns = np.nonzero(mask)
        u = (columns - self.x) * np.cos(self.turn) + (rows - self.y) * np.sin(self.turn)
        v = (rows - self.y) * np.cos(self.turn) - (columns - self.x) * np.sin(self.turn)
        canvas[rows, columns] = np.where(self.shape.texture(u, v)[:, None], self.dark, self.bright)
        return mask


def make_sprite(rng: np.random.Generator, shape: Shape, x: float, y: float, radius: float) -> Sprite:
    """Makes a shape with a random rotation and random colours of its class."""
    turn = rng.uniform(0, 2 * np.pi)
    hue = (shape.hue + rng.uniform(-50, 50)) % 360  # neighbouring classes share part of their range
    saturation, light = rng.uniform(0.35, 0.9), rng.uniform(0.75, 1.)
    hsv = np.array([[[hue, saturation, light], [hue, saturation, 0.45 * light]]], np.float32)
    bright, dark = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)[0] * 255
    return Sprite(shape, x, y, radius, turn, bright, dark)


def place_shape(rng: np.random.Generator, name: str, height: int, width: int, radius: float) -> Sprite:
    """Makes a shape at a random position in the part of the image for its class."""
    y = rng.uniform(0.6 * radius, height - 0.6 * radius)
    if name in UPPER + LOWER:
        # Away from the middle, and from the border, because a head that sees the border could infer the position.
        radius = min(radius, 0.19 * height)
        y = rng.uniform(1.05 * radius, 0.38 * height)
        y = y if name in UPPER else height - y
    x = rng.uniform(0.6 * radius, width - 0.6 * radius)
    return make_sprite(rng, SHAPES[name], x, y, radius)


def make_image(rng: np.random.Generator) -> tuple[Image, NDArray[np.uint8], list[tuple[int, Mask]]]:
    """Makes one image with sides of 64 to 256 pixels.

    Returns:
        The RGB image `(H, W, 3)`, the label map `(H, W)` (0 for background, 1 + class elsewhere), both uint8, and the
            class and visible mask of each instance that is not hidden.
    """
    height, width = (int(side) for side in rng.integers(64, 257, 2))
    canvas = background(rng, height, width)
    owner = np.zeros((height, width), np.int32)  # 0: background, k: the k-th shape
    names = [str(name) for name in rng.choice(CLASSES, rng.integers(1, 3 + height * width // 10000))]
    for k, name in enumerate(names, start=1):
        radius = np.clip(rng.uniform(0.1, 0.32) * np.sqrt(height * width), 14, 0.45 * min(height, width))
        owner[place_shape(rng, name, height, width, radius).paint(canvas)] = k
    image = add_noise(rng, canvas)
    labels, instances = np.zeros((height, width), np.uint8), []
    for k, name in enumerate(names, start=1):
        visible = owner == k
        if visible.any():
            labels[visible] = 1 + CLASSES.index(name)
            instances.append((CLASSES.index(name), visible))
    return image, labels, instances


def to_annotation(mask: Mask, **ids: int) -> dict[str, Any]:
    """Makes one entry of COCO's `annotations` from a mask `(H, W)`, with a compressed RLE mask and the given ids."""
    rle = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return dict(ids, bbox=coco_mask.toBbox(rle).tolist(), area=int(mask.sum()), iscrowd=0,
                segmentation=dict(size=list(mask.shape), counts=rle['counts'].decode()))


def write_split(root: Path, split: str, count: int, seed: int) -> Iterator[int]:
    """Writes the images, label maps and COCO annotations of one split; yields each index after writing it."""
    images, labels = root / 'images' / split, root / 'annotations' / split
    images.mkdir(parents=True)
    labels.mkdir(parents=True)
    coco = dict(
        images=[], annotations=[],
        categories=[dict(id=i, name=name, supercategory='shape') for i, name in enumerate(CLASSES, start=1)])
    for index in range(count):
        # With a random generator per image, the image does not depend on the number of images.
        rng = np.random.default_rng([seed, sum(map(ord, split)), index])
        image, label_map, instances = make_image(rng)
        name = f'{index:06d}'
        write_image(images / f'{name}.jpg', image)
        write_image(labels / f'{name}.png', label_map)
        coco['images'].append(dict(id=index, file_name=f'{name}.jpg', height=image.shape[0], width=image.shape[1]))
        coco['annotations'] += [
            to_annotation(mask, id=len(coco['annotations']) + i, image_id=index, category_id=1 + label)
            for i, (label, mask) in enumerate(instances, start=1)]
        yield index
    (root / f'instances_{split}.json').write_text(json.dumps(coco))


@contextmanager
def whole_folder(root: Path) -> Iterator[Path]:
    """Yields the folder `<root>.unfinished`, without what an interrupted run has left there; renames it if the block
    succeeds. Raises a UserError if `root` exists.
    """
    if root.exists():
        raise UserError(f'{root} exists already: remove it, or choose another folder.')
    unfinished = root.with_name(f'{root.name}.unfinished')
    with held(unfinished):
        for part in unfinished.iterdir():
            if part.is_dir():
                shutil.rmtree(part)
        yield unfinished
    unfinished.rename(root)


def write_splits(root: Path, write: Callable[[Path, str, int, int], Iterator[int]],
                 made_from: dict[str, int]) -> Iterator[int]:
    """Writes a dataset with the splits 'training' and 'validation'; yields the number of images or videos written so
    far.

    `root` is created when the dataset is complete. If it was made from the same values, it is not changed.
    `write(folder, split, count, seed)` writes a split and yields after each image or video. `made_from` has
    `num_train`, `num_val`, `seed`, and other values that identify the dataset.
    """
    recipe = root / 'made_from.json'
    if root.exists():
        if recipe.exists() and json.loads(recipe.read_text()) == made_from:
            return
        raise UserError(
            f'{root} exists, but is not a toy dataset of {made_from}: remove it, or choose another folder.')
    with whole_folder(root) as unfinished:
        splits = dict(training=made_from['num_train'], validation=made_from['num_val'])
        written = chain.from_iterable(write(unfinished, split, count, made_from['seed'])
                                      for split, count in splits.items())
        for done, _ in enumerate(written, start=1):
            yield done
        (unfinished / recipe.name).write_text(json.dumps(made_from))


def write_toy_shapes(root: Path, num_train: int = 800, num_val: int = 100, seed: int = 0) -> Iterator[int]:
    """Writes the dataset; see `write_splits`. With the same seed, OpenCV and Pillow, the pixels are the same.

    As in ADE20K, images are in `images/{training,validation}`, and label maps, in which 0 is no class, are in
    `annotations/{training,validation}`. `instances_{training,validation}.json` is in COCO format.
    """
    yield from write_splits(root, write_split, dict(num_train=num_train, num_val=num_val, seed=seed))


def run(doc: str | None, write: Callable[[Path, int, int, int], Iterator[int]], root: str) -> None:
    """Parses the command line, and writes a toy dataset with a progress bar; `root` is the default folder."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('root', type=Path, nargs='?', default=root, help='the folder to write')
    parser.add_argument('--num-train', type=int, default=800, help='number of images (or videos) to train on')
    parser.add_argument('--num-val', type=int, default=100, help='number of images (or videos) to validate')
    parser.add_argument('--seed', type=int, default=0, help='the same seed gives the same pixels')
    args = parser.parse_args()
    written = write(args.root, args.num_train, args.num_val, args.seed)
    for _ in track(written, f'Drawing {args.root}', args.num_train + args.num_val):
        pass


@exit_on_error
def main() -> None:
    run(__doc__, write_toy_shapes, 'data/toy_shapes')
