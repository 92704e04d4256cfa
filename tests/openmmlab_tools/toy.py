"""Toy configs with stock models, Mask R-CNN of mmdet and FCN of mmseg with a narrow ResNet, and toy data for them."""
import json
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from openmmlab_tools.files import write_image

CONFIGS = Path(__file__).parent / 'configs'
DETECTOR, SEGMENTOR = CONFIGS / 'mask-rcnn_r18_toy.py', CONFIGS / 'fcn_r18_toy.py'
CLASSES = ('sun', 'ball', 'kite', 'boat', 'square')


def to_annotation(mask: np.ndarray, **ids: int) -> dict[str, Any]:
    """Makes an entry of COCO's `annotations` from a mask `(H, W)`, with a compressed RLE mask and the given ids."""
    rle = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return dict(ids, bbox=coco_mask.toBbox(rle).tolist(), area=int(mask.sum()), iscrowd=0,
                segmentation=dict(size=list(mask.shape), counts=rle['counts'].decode()))


def write_toy(root: Path, num_train: int = 8, num_val: int = 4) -> None:
    """Writes images with ellipses and rectangles on noise, COCO's instances, and label maps, in which 0 is no class.

    Images have sides of 64 to 256 pixels, at least one object, and the same pixels in each call.
    """
    for split, count in (('training', num_train), ('validation', num_val)):
        rng = np.random.default_rng(len(split))
        for name in ('images', 'annotations'):
            (root / name / split).mkdir(parents=True)
        categories = [dict(id=number, name=name, supercategory='shape') for number, name in enumerate(CLASSES, 1)]
        coco = dict(images=[], annotations=[], categories=categories)
        for number in range(count):
            height, width = (int(side) for side in rng.integers(64, 257, 2))
            image = rng.integers(0, 128, (height, width, 3), np.uint8)
            labels, name = np.zeros((height, width), np.uint8), f'{number:06d}'
            for mask in _shapes(rng, height, width):
                label = int(rng.integers(len(CLASSES)))
                labels[mask] = label + 1
                image[mask] = 127 + image[mask] % 32 + 32 * np.array([label & 1, label >> 1 & 1, label >> 2], np.uint8)
                coco['annotations'].append(to_annotation(
                    mask, id=len(coco['annotations']) + 1, image_id=number, category_id=label + 1))
            write_image(root / f'images/{split}/{name}.jpg', image)
            write_image(root / f'annotations/{split}/{name}.png', labels)
            coco['images'].append(dict(id=number, file_name=f'{name}.jpg', height=height, width=width))
        (root / f'instances_{split}.json').write_text(json.dumps(coco))


def _shapes(rng: np.random.Generator, height: int, width: int) -> list[np.ndarray]:
    """Returns the masks of one to four shapes, each in its own quarter of the image."""
    rows, columns = np.indices((height, width))
    masks = []
    for quarter in range(int(rng.integers(1, 5))):
        y, x = height * (1 + 2 * (quarter // 2)) / 4, width * (1 + 2 * (quarter % 2)) / 4
        high, wide = rng.uniform(0.12, 0.24, 2) * (height, width)
        distance = np.abs(rows - y) / high, np.abs(columns - x) / wide
        masks.append(np.maximum(*distance) < 1 if rng.random() < 0.5 else np.hypot(*distance) < 1)
    return masks
