"""Input images of the analysis tools."""
from pathlib import Path

import cv2
import mmcv
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import Tensor

from cpvt_mm.errors import UserError, first_line
from cpvt_mm.loading import normalization

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff')


def read_image(path: str | Path, size: tuple[int, int] | None = None) -> np.ndarray:
    """Reads an image as RGB, `(H, W, 3)`, uint8.

    Args:
        path: The file.
        size: Height and width in pixels to resize to. Defaults to None: no resizing.

    Raises:
        UserError: If the file does not exist or is not an image.
    """
    try:
        image = mmcv.imread(path)
    except OSError as error:
        raise UserError(f'image {path} cannot be read ({error.strerror or first_line(error)}): check the path.'
                        ) from error
    except cv2.error:  # an empty file
        image = None
    if image is None:
        raise UserError(f'image {path} cannot be read: it is damaged or not an image.')
    image = mmcv.bgr2rgb(image)
    return image if size is None else mmcv.imresize(image, size[::-1])


def read_square(path: str | Path, side: int) -> np.ndarray:
    """Reads the central square of an image, resized to `side` pixels; see `read_image`."""
    image = read_image(path)
    length = min(image.shape[:2])
    top, left = (image.shape[0] - length) // 2, (image.shape[1] - length) // 2
    return mmcv.imresize(image[top:top + length, left:left + length], (side, side))


def list_images(folder: str | Path) -> list[Path]:
    """Lists the images of a folder, sorted by name.

    Raises:
        UserError: If the folder does not exist or contains no image.
    """
    if not Path(folder).is_dir():
        raise UserError(f'folder {folder} does not exist: check the path.')
    paths = sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    if not paths:
        raise UserError(f'folder {folder} has no image ({", ".join(IMAGE_SUFFIXES)}): choose a folder of images.')
    return paths


def to_input(image: np.ndarray, cfg: Config) -> Tensor:
    """Normalizes an image for a model: `(H, W, 3)` RGB -> `(1, 3, H, W)`, float32, not padded.

    Args:
        image: See `read_image`.
        cfg: Its data preprocessor gives `mean`, `std` and the order of channels.
    """
    mean, std, is_rgb = normalization(cfg)
    channels = np.asarray(image if is_rgb else image[..., ::-1], np.float32)
    normalized = (channels - np.array(mean, np.float32)) / np.array(std, np.float32)
    return torch.from_numpy(normalized).permute(2, 0, 1)[None].contiguous()


def smooth_noise(side: int, seed: int) -> Tensor:
    """Draws smooth noise of all scales; as in photographs, larger scales are stronger.

    Returns:
        `(1, 3, side, side)`, float32, of mean 0 and variance 1.
    """
    generator = torch.Generator().manual_seed(seed)
    image = torch.zeros(1, 3, side, side)
    cells = 2
    while cells <= side // 2:
        noise = torch.randn(1, 3, cells, cells, generator=generator) / cells
        image += F.interpolate(noise, (side, side), mode='bicubic', align_corners=False)
        cells *= 2
    return (image - image.mean()) / image.std()
