"""Entries of COCO annotation files."""
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask


def to_annotation(mask: NDArray[np.bool_], **ids: int) -> dict[str, Any]:
    """Makes one entry of COCO's `annotations` from a mask `(H, W)`, with a compressed RLE mask and the given ids."""
    rle = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return dict(ids, bbox=coco_mask.toBbox(rle).tolist(), area=int(mask.sum()), iscrowd=0,
                segmentation=dict(size=list(mask.shape), counts=rle['counts'].decode()))
