"""Tests a segmentor on whole images, or with sliding windows."""
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mmengine.config import Config

from cpvt_mm.errors import UserError


@dataclass(frozen=True)
class Windows:
    """Sliding windows over an image; predictions of overlapping windows are averaged.

    Attributes:
        crop_size: Height and width of a window in pixels.
        stride: Vertical and horizontal step between windows in pixels.
    """
    crop_size: tuple[int, int]
    stride: tuple[int, int]

    def __str__(self) -> str:
        return 'slide {}x{} by {}x{}'.format(*self.crop_size, *self.stride)


# None is for models that are not segmentors.
Mode = Windows | Literal['whole'] | None


def resolve_mode(cfg: Config, name: str | None = None, crop_size: Sequence[int] | None = None,
                 stride: Sequence[int] | None = None) -> Mode:
    """Finds the mode of a test.

    Args:
        cfg: Config of a detector or segmentor.
        name: 'whole' or 'slide'. Defaults to None: the mode of the config, if it is of a segmentor.
        crop_size: Height and width of the windows in pixels. Defaults to None: the config's.
        stride: Vertical and horizontal step between windows in pixels. Defaults to None: the config's.

    Raises:
        UserError: If the model is not a segmentor but `name` is given, or the windows are incomplete or leave gaps.
    """
    if cfg.default_scope != 'mmseg':
        if name:
            raise UserError(f'--mode {name} is for segmentors, but config {cfg.filename} is for {cfg.default_scope}: '
                            'leave it out.')
        return None
    test_cfg = cfg.model.get('test_cfg') or {}
    if (name or test_cfg.get('mode', 'whole')) == 'whole':
        return 'whole'
    sides: dict[str, tuple[int, int]] = {}
    for key, given in (('crop_size', crop_size), ('stride', stride)):
        value = given or test_cfg.get(key)
        if value is None:
            raise UserError(f'model.test_cfg of config {cfg.filename} has no {key} for sliding windows: pass '
                            f'--{key.replace("_", "-")} HEIGHT WIDTH.')
        sides[key] = value[0], value[1]
    windows = Windows(**sides)
    if any(not 1 <= step <= side for step, side in zip(windows.stride, windows.crop_size, strict=True)):
        raise UserError(f'--stride is {windows.stride[0]} {windows.stride[1]}, but must be from 1 to --crop-size '
                        f'({windows.crop_size[0]} {windows.crop_size[1]}): windows further apart leave gaps.')
    return windows


def set_mode(cfg: Config, mode: Mode) -> None:
    """Sets the test mode of a segmentor; see `resolve_mode`."""
    if isinstance(mode, Windows):
        cfg.merge_from_dict({'model.test_cfg': dict(mode='slide', crop_size=mode.crop_size, stride=mode.stride)})
    elif mode:
        cfg.merge_from_dict({'model.test_cfg': dict(mode=mode)})
