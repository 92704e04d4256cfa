"""Smaller pictures of predictions, for images that need not fit into memory."""
import math
from dataclasses import replace
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from openmmlab_tools.errors import say
from openmmlab_tools.pictures.bands import read_view, to_view
from openmmlab_tools.pictures.masks import cells_of
from openmmlab_tools.pictures.prediction import Picture, Prediction

from .regions import Regions
from .tiles import move_mask

ROWS = 256  # of a file that are in memory at once


def reduced(prediction: Prediction, most: int, regions: Regions | None = None) -> Prediction:
    """Returns a prediction to plot on every n-th row and column of its image, with about `most` pixels or fewer.

    It is the same prediction if the image is not larger. Objects of which no pixel is left are not in it. `regions` is
    the file of the image if it can be read in regions.
    """
    step = math.ceil(math.sqrt(prediction.size[0] * prediction.size[1] / most))
    if step == 1 or prediction.image is None:
        return prediction
    say(f'note: the picture of {prediction.name} shows one of {step} rows and columns, because the image has more than '
        f'{most} pixels: pass a larger --max-pixels to draw more of them.')
    image = _thinned(regions or prediction.image, step)
    small = replace(prediction, size=image.shape[:2], image=image)
    if prediction.label_map is not None:
        return replace(small, label_map=np.ascontiguousarray(prediction.label_map[::step, ::step]))
    assert prediction.boxes is not None
    small = replace(small, boxes=prediction.boxes / step)
    if prediction.masks is None:
        return small
    masks = {i: thin for i, mask in enumerate(prediction.masks) if (thin := _thin_mask(mask, step, small.size))}
    return replace(replace(small, masks=None).take(np.array([*masks], int)), masks=[*masks.values()])


def _thinned(image: Picture | Regions, step: int) -> np.ndarray:
    """Returns every `step`-th row and column of an image, `(H, W, 3)`; regions are read some rows at once."""
    if not isinstance(image, Regions):
        view = to_view(image) if isinstance(image, np.ndarray) else read_view(image)
        return np.ascontiguousarray(view[::step, ::step])
    height, width = image.size
    rows = max(1, ROWS // step) * step
    # Copies, because a view would keep all rows in memory.
    return np.concatenate([image[top:top + rows, :width][::step, ::step].copy() for top in range(0, height, rows)])


def _thin_mask(mask: dict[str, Any], step: int, size: tuple[int, int]) -> dict[str, Any] | None:
    """Returns the RLE of every `step`-th row and column of a mask; None if no pixel is left."""
    top, left, cells = cells_of(mask)
    first = -top % step, -left % step
    thin = cells[first[0]::step, first[1]::step]
    if not thin.any():
        return None
    return move_mask(coco_mask.encode(np.asfortranarray(thin)), (top + first[0]) // step, (left + first[1]) // step,
                     size)
