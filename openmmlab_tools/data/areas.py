"""Finds areas in COCO's layout that cannot be right: COCO's metric needs them for AP by size."""
from collections.abc import Sequence
from typing import Any

import numpy as np

from openmmlab_tools.pictures.masks import area_of

# If all areas are the same share of their boxes, and this share is lower, they are not from masks: even triangles fill
# half of their boxes.
LEAST_SHARE = 0.49
FEWEST = 3  # boxes without masks whose shares are compared


def wrong_areas(annotations: Sequence[dict[str, Any]]) -> dict[int, tuple[float, str]]:
    """Returns the right area and its source, 'mask' or 'box', for annotations with an impossible `area`, by index.

    Programs write 1, a share of the image, or pixels of a scaled image. The bounds are wide, because an area may be
    the area of the mask or the box, and may count pixels or come from polygons:

    - An area must not be larger than the mask and the box, each with a border of one pixel, by more than 10 %.
    - It must not be smaller than half of the box's longer side, because an object touches all sides of its box, unless
      the mask is as thin.
    - With a mask, it must not be smaller than half of the mask without a border of one pixel.
    - Without masks, all are wrong if they are the same share of the box everywhere, and this share is below 0.49.

    Boxes with a side below one pixel are left out; other checks report them.
    """
    wrong, shares, alone = dict[int, tuple[float, str]](), dict[int, float](), 0
    for index, annotation in enumerate(annotations):
        area, (width, height) = annotation['area'], annotation['bbox'][2:]
        box, border, length = width * height, width + height + 1, max(width, height)
        if min(width, height) < 1:
            continue
        alone += not annotation.get('segmentation')
        if box / 2 <= area <= box:  # also half of a mask, which is not larger than its box
            continue
        mask = area_of(annotation.get('segmentation'))
        least = length / 2 if mask is None else max(min(mask, length) / 2, mask / 2 - border)
        if not least <= area <= 1.1 * (max(box, mask or 0) + border):
            wrong[index] = (float(box), 'box') if mask is None else (float(mask), 'mask')
        elif mask is None:
            shares[index] = area / box
    is_of_all = len(shares) + sum(source == 'box' for _, source in wrong.values()) == alone
    return wrong | (_of_one_share(annotations, shares) if is_of_all and len(shares) >= FEWEST else {})


def _of_one_share(annotations: Sequence[dict[str, Any]], shares: dict[int, float]) -> dict[int, tuple[float, str]]:
    share = float(np.median([*shares.values()]))
    boxes = {index: annotations[index]['bbox'][2] * annotations[index]['bbox'][3] for index in shares}
    are_equal = all(abs(annotations[index]['area'] - share * box) <= 1 + 0.01 * share * box
                    for index, box in boxes.items())
    return {index: (float(box), 'box') for index, box in boxes.items()} if are_equal and share < LEAST_SHARE else {}
