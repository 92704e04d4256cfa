"""Test sizes of images."""
from typing import NamedTuple

from mmengine.config import Config, ConfigDict

from cpvt_mm.cli import parse_sides
from cpvt_mm.errors import UserError

DEFAULT_SIDE = 512  # pixels, of configs that test images at their own sizes (`scale_factor=1.`)


class Size(NamedTuple):
    """The `scale` of a Resize, in pixels; a square is written as one number."""
    width: int
    height: int

    def __str__(self) -> str:
        return f'{self.width}' if self.width == self.height else f'{self.width}x{self.height}'


def parse_size(text: str) -> Size:
    """Reads '512' or '1333x800', width first. Raises a UserError if it is neither."""
    return Size(*parse_sides(text))


def shorter_test_side(cfg: Config) -> int:
    """Returns the shorter side of the test pipeline's scale, in pixels; 512 if its Resize has no `scale`.

    Raises:
        UserError: See `set_test_size`.
    """
    return min(_scale(cfg))


def set_shorter_test_side(cfg: Config, side: int) -> None:
    """Multiplies the scale of the test pipeline by a factor, so that its shorter side is `side` pixels.

    Raises:
        UserError: See `set_test_size`.
    """
    scale = _scale(cfg)
    set_test_size(cfg, Size(*(round(length * side / min(scale)) for length in scale)))


def set_test_size(cfg: Config, size: Size) -> None:
    """Sets the scale of the test pipeline to `size`.

    With `keep_ratio`, images are resized to fit into `size`, with the longer side along the longer side of `size`.

    Raises:
        UserError: If the pipeline has no Resize.
    """
    for transform in _resizes(cfg):
        transform.scale = tuple(size)


def _scale(cfg: Config) -> Size:
    scale = _resizes(cfg)[0].get('scale') or DEFAULT_SIDE
    return Size(scale, scale) if isinstance(scale, int) else Size(*scale)


def _resizes(cfg: Config) -> list[ConfigDict]:
    pipeline = cfg.test_dataloader.dataset.get('pipeline') or ()
    resizes = [transform for transform in pipeline if str(transform.type).split('.')[-1] == 'Resize']
    if not resizes:
        raise UserError(f'The test pipeline of config {cfg.filename} has no Resize, so no test size can be set: add '
                        'one.')
    return resizes
