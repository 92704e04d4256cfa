"""Entries of COCO annotation files."""
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask


def to_annotation(mask: NDArray[np.bool_], **ids: int) -> dict[str, Any]:
    """Makes one entry of COCO's `annotations`, with a compressed RLE mask.

    Args:
        mask: The mask of the instance, `(H, W)`.
        ids: `id`, `image_id` and `category_id`; for videos also `video_id` and `instance_id`.
    """
    rle = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return dict(ids, bbox=coco_mask.toBbox(rle).tolist(), area=int(mask.sum()), iscrowd=0,
                segmentation=dict(size=list(mask.shape), counts=rle['counts'].decode()))
