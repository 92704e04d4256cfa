"""Writes toy videos of moving shapes, in the format of YouTube-VIS for mmdet: `python -m projects.video.toy_video`.

Some balls and kites move to the right, others to the left. Their classes differ only in the direction. One frame does
not show the direction, two consecutive frames do.
"""
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.commands import toy_shapes as toy
from openmmlab_tools.errors import exit_on_error
from openmmlab_tools.files import write_image

# The shape of a class, and its direction: 1 is right, -1 is left, 0 is random.
CLASSES = {
    'ball right': (toy.SHAPES['ball'], 1), 'ball left': (toy.SHAPES['ball'], -1),
    'kite right': (toy.SHAPES['kite'], 1), 'kite left': (toy.SHAPES['kite'], -1), 'square': (toy.SHAPES['square'], 0)}
NUM_FRAMES = 8
# Lengths are in pixels, speeds in pixels per frame.
HEIGHT, WIDTH = 48, 96
RADII = (8, 11)
SPEEDS = (6, 9)
# The path of a shape wraps around: a shape that leaves on one side enters on the other, after a frame outside. So its
# position is uniformly distributed in every frame, for both directions.
CIRCLE = WIDTH + 2 * RADII[1] + SPEEDS[1]


@dataclass(frozen=True)
class Mover:
    """The index of a class, the shape in frame 0, with `x` in 0 to `CIRCLE`, and its velocity to the right in pixels
    per frame. `CIRCLE` begins left of the canvas.
    """
    label: int
    sprite: toy.Sprite
    velocity: int

    def at(self, frame: int) -> toy.Sprite:
        """Returns the shape in a frame, in coordinates of the canvas; its rotation does not change."""
        way = (self.sprite.x + self.velocity * frame) % CIRCLE
        return replace(self.sprite, x=way - (CIRCLE - WIDTH) / 2)


def make_mover(rng: np.random.Generator) -> Mover:
    """Makes a shape of a random class; its initial position and appearance do not depend on its direction."""
    label = int(rng.integers(len(CLASSES)))
    shape, direction = list(CLASSES.values())[label]
    radius = rng.uniform(*RADII)
    sprite = toy.make_sprite(rng, shape, rng.uniform(0, CIRCLE), rng.uniform(radius, HEIGHT - radius), radius)
    speed, either = int(rng.integers(*SPEEDS, endpoint=True)), int(rng.choice((-1, 1)))
    return Mover(label, sprite, speed * (direction or either))


def make_video(rng: np.random.Generator) -> tuple[list[toy.Image], list[Mover], list[list[toy.Mask]]]:
    """Makes the RGB frames `(H, W, 3)`, uint8, of one video with a static background and one to three shapes.

    Returns also the shapes, and for each frame the visible mask `(H, W)` of each shape, which may be empty.
    """
    still = toy.background(rng, HEIGHT, WIDTH)
    movers = [make_mover(rng) for _ in range(rng.integers(1, 4))]
    frames, masks = [], []
    for frame in range(NUM_FRAMES):
        canvas, owner = still.copy(), np.full((HEIGHT, WIDTH), -1)
        for k, mover in enumerate(movers):
            owner[mover.at(frame).paint(canvas)] = k
        frames.append(toy.add_noise(rng, canvas))
        masks.append([owner == k for k in range(len(movers))])
    return frames, movers, masks


def write_split(root: Path, split: str, count: int, seed: int) -> Iterator[int]:
    """Writes the frames and annotations of one split; yields each index after writing it."""
    coco: dict[str, list[dict]] = dict(
        videos=[], images=[], annotations=[],
        categories=[dict(id=i, name=name, supercategory='shape') for i, name in enumerate(CLASSES, start=1)])
    num_instances = 0
    for index in range(count):
        # With a random generator per video, the video does not depend on the number of videos.
        frames, movers, masks = make_video(np.random.default_rng([seed, sum(map(ord, split)), index]))
        name, size, video_id = f'{index:06d}', dict(height=HEIGHT, width=WIDTH), index + 1
        coco['videos'].append(dict(id=video_id, name=name, **size))
        (root / 'images' / split / name).mkdir(parents=True)
        for frame, image in enumerate(frames):
            file, image_id = f'{name}/{frame:05d}.jpg', len(coco['images']) + 1
            write_image(root / 'images' / split / file, image)
            coco['images'].append(dict(id=image_id, file_name=file, video_id=video_id, frame_id=frame, **size))
            for k, (mover, mask) in enumerate(zip(movers, masks[frame], strict=True), start=1):
                if mask.any():
                    # mmdet treats an instance_id of 0 as missing.
                    coco['annotations'].append(toy.to_annotation(
                        mask, id=len(coco['annotations']) + 1, image_id=image_id, category_id=1 + mover.label,
                        video_id=video_id, instance_id=num_instances + k))
        num_instances += len(movers)
        yield index
    (root / f'instances_{split}.json').write_text(json.dumps(coco))


def write_toy_video(root: Path, num_train: int = 800, num_val: int = 100, seed: int = 0) -> Iterator[int]:
    """Writes the dataset, see `write_splits`. The same seed gives the same pixels, by the same OpenCV and Pillow.

    Frames are in `images/{training,validation}/<video>/<frame>.jpg`. `instances_{training,validation}.json` is in the
    format that mmdet's `youtubevis2coco.py` writes.
    """
    yield from toy.write_splits(root, write_split,
                            dict(num_train=num_train, num_val=num_val, seed=seed, num_frames=NUM_FRAMES))


@exit_on_error
def main() -> None:
    toy.run(__doc__, write_toy_video, 'data/toy_video')


if __name__ == '__main__':
    main()
