"""A transform that loads images with any number of channels and 8, 16 or 32 bits."""
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmcv.transforms import BaseTransform

from openmmlab_tools.registry import TRANSFORMS

from .bands import read_bands
from .images import ImageFault


@TRANSFORMS.register_module()
class LoadBandsFromFile(BaseTransform):
    """Loads `img_path` as `img`, `(H, W, channels)`, float32, with the values and the order of the file.

    The module `bands` describes the formats, and the place of channels in TIFF. The channels are not BGR: keep
    `bgr_to_rgb=False`. Use mmcv's `Normalize(mean, std, to_rgb=False)` in the pipeline, because mmdet's data
    preprocessor accepts only one or three channels. A pixel has no value if it is not finite in float32, or declared as
    nodata.

    Args:
        channels: The number of channels that images must have. It must equal `in_channels` of the backbone.
        fill: A value for each channel, such as the mean, for pixels without a value. Defaults to None: such pixels
            raise an error.
        backend_args: Arguments of mmengine's file backend. Defaults to None: chosen by the path.

    Raises:
        UserError: If an image cannot be read, has another number of channels, or has pixels without a value.
    """

    def __init__(self, channels: int, fill: Sequence[float] | None = None, backend_args: dict[str, Any] | None = None
                 ) -> None:
        if fill is not None and len(fill) != channels:
            raise ValueError(f'fill has {len(fill)} values, but channels is {channels}: give one for each channel.')
        self.channels = channels
        self.fill = None if fill is None else np.array(fill, np.float32)
        self.backend_args = backend_args

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """Sets `img`, `img_shape` and `ori_shape`, height and width, of a sample with `img_path`."""
        image = self.read(results['img_path'])
        return dict(results, img=image, img_shape=image.shape[:2], ori_shape=image.shape[:2])

    def read(self, path: str | Path) -> np.ndarray:
        """Reads a file as `transform` does."""
        return self.checked(read_bands(path, self.backend_args), path)

    def checked(self, image: np.ndarray, name: str | Path) -> np.ndarray:
        """Returns an image, `(H, W, channels)`, as float32 with all values; an error calls it by its name."""
        if image.ndim != 3 or image.shape[2] != self.channels:
            raise ImageFault(name, f'has shape {image.shape} (height, width, channels), but LoadBandsFromFile of the '
                             f'config has channels={self.channels}: correct the image or the config')
        image = image.astype(np.float32)
        is_empty = ~np.isfinite(image)
        if share := is_empty.any(axis=2).mean():
            if self.fill is None:
                raise ImageFault(name, f'has no value (NaN, infinite or nodata) at {100 * share:.2g} % of its pixels: '
                                 'set fill=mean of LoadBandsFromFile in the config')
            image = np.where(is_empty, self.fill, image)
        return image
