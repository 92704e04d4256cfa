"""What the analysis tools look at: a backbone with its weights, and images."""
from pathlib import Path

import cv2
import mmcv
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor

from cpvt_mm.checkpoints.reading import load_weights
from cpvt_mm.errors import UserError, first_line
from cpvt_mm.models import CPVT, PyramidCPVT

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp')


def backbone_config(cfg: Config) -> ConfigDict:
    """`model.backbone` of a config; a UserError where there is none."""
    if 'backbone' not in cfg.get('model', {}):
        raise UserError(f'config {cfg.filename} has no model.backbone: take one of a model with a CPVT or PyramidCPVT.')
    return cfg.model.backbone


def load_backbone(cfg: Config, checkpoint: str | Path | None = None) -> CPVT | PyramidCPVT:
    """The backbone of a config, in eval mode.

    Args:
        cfg: With `model.backbone` and, where its type needs it, `default_scope`.
        checkpoint: Weights of the whole `model`. Defaults to None: those it is constructed with, which are random.

    Raises:
        UserError: If the config gives no such backbone, or the checkpoint does not fit.
    """
    config = backbone_config(cfg)
    try:
        with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
            model = MODELS.build(cfg.model) if checkpoint else None
            backbone = model.backbone if checkpoint else MODELS.build(config)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f'the model cannot be built: {first_line(error)}') from error
    if not isinstance(backbone, (CPVT, PyramidCPVT)):
        raise UserError(f'model.backbone of config {cfg.filename} is a {type(backbone).__name__}, but must be a CPVT '
                        'or a PyramidCPVT.')
    if checkpoint:
        load_weights(model, checkpoint)
    return backbone.eval()


def read_image(path: str | Path, size: tuple[int, int] | None = None) -> np.ndarray:
    """Reads an image as RGB, `(H, W, 3)`, uint8.

    Args:
        path: The file.
        size: Height and width in pixels to resize to. Defaults to None: as it is.

    Raises:
        UserError: If there is no such file, or it is no image.
    """
    try:
        image = mmcv.imread(path)
    except OSError as error:
        raise UserError(f'image {path} cannot be read ({error.strerror or first_line(error)}): check the path.'
                        ) from error
    except cv2.error:  # an empty file
        image = None
    if image is None:
        raise UserError(f'image {path} cannot be read: it is damaged, or no image.')
    image = mmcv.bgr2rgb(image)
    return image if size is None else mmcv.imresize(image, size[::-1])


def read_square(path: str | Path, side: int) -> np.ndarray:
    """The central square of an image, resized to `side` pixels: as of `read_image`."""
    image = read_image(path)
    length = min(image.shape[:2])
    top, left = (image.shape[0] - length) // 2, (image.shape[1] - length) // 2
    return mmcv.imresize(image[top:top + length, left:left + length], (side, side))


def list_images(folder: str | Path) -> list[Path]:
    """The images of a folder, by name.

    Raises:
        UserError: If there is no such folder, or no image in it.
    """
    if not Path(folder).is_dir():
        raise UserError(f'folder {folder} does not exist: check the path.')
    paths = sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    if not paths:
        raise UserError(f'folder {folder} has no image ({", ".join(IMAGE_SUFFIXES)}): name one that has.')
    return paths


def normalization(cfg: Config) -> tuple[list[float], list[float], bool]:
    """What a config's data preprocessor does to pixels: `mean`, `std`, and whether channels are RGB instead of BGR."""
    preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    # mmpretrain has its own name for it.
    is_rgb = bool(preprocessor.get('bgr_to_rgb') or preprocessor.get('to_rgb'))
    return list(preprocessor.get('mean') or [0., 0., 0.]), list(preprocessor.get('std') or [1., 1., 1.]), is_rgb


def to_input(image: np.ndarray, cfg: Config) -> Tensor:
    """What a model sees of an image, unpadded: `(H, W, 3)` RGB -> `(1, 3, H, W)`, float32.

    Args:
        image: As of `read_image`.
        cfg: Whose data preprocessor says `mean`, `std` and the order of channels.
    """
    mean, std, is_rgb = normalization(cfg)
    channels = np.asarray(image if is_rgb else image[..., ::-1], np.float32)
    return torch.from_numpy((channels - np.float32(mean)) / np.float32(std)).permute(2, 0, 1)[None].contiguous()


def smooth_noise(size: int, seed: int) -> Tensor:
    """Blobs of all sizes, larger ones stronger, as in photographs: `(1, 3, size, size)` of mean 0 and variance 1."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.zeros(1, 3, size, size)
    cells = 2
    while cells <= size // 2:
        noise = torch.randn(1, 3, cells, cells, generator=generator) / cells
        image += F.interpolate(noise, (size, size), mode='bicubic', align_corners=False)
        cells *= 2
    return (image - image.mean()) / image.std()
