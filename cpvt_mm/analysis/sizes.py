"""The sizes that images are tested at."""
from typing import NamedTuple

from mmengine.config import Config, ConfigDict

from cpvt_mm.cli import parse_sides
from cpvt_mm.errors import UserError


class Size(NamedTuple):
    """The `scale` of a Resize, in pixels; a square's is written as one number."""
    width: int
    height: int

    def __str__(self) -> str:
        return f'{self.width}' if self.width == self.height else f'{self.width}x{self.height}'


def parse_size(text: str) -> Size:
    """Reads '512' or '1333x800', width first. Raises a UserError if it is neither."""
    return Size(*parse_sides(text))


def shorter_test_side(cfg: Config) -> int:
    """Returns the shorter side in pixels of what the test pipeline resizes images to; see `set_test_size`."""
    return min(_scale(cfg))


def set_shorter_test_side(cfg: Config, side: int) -> None:
    """Has the test pipeline resize images to its own scale, times so much that the shorter side is `side` pixels.

    Raises:
        UserError: See `set_test_size`.
    """
    scale = _scale(cfg)
    set_test_size(cfg, Size(*(round(length * side / min(scale)) for length in scale)))


def set_test_size(cfg: Config, size: Size) -> None:
    """Has the test pipeline resize images to `size`; with `keep_ratio`, to fit into it, longer side along longer side.

    Raises:
        UserError: If the pipeline has no Resize.
    """
    for transform in _resizes(cfg):
        transform.scale = tuple(size)


def _scale(cfg: Config) -> Size:
    scale = _resizes(cfg)[0].get('scale')
    if not scale:
        raise UserError(f'The Resize in the test pipeline of config {cfg.filename} has no scale: give it one.')
    return Size(scale, scale) if isinstance(scale, int) else Size(*scale)


def _resizes(cfg: Config) -> list[ConfigDict]:
    pipeline = cfg.test_dataloader.dataset.get('pipeline') or ()
    resizes = [transform for transform in pipeline if str(transform.type).split('.')[-1] == 'Resize']
    if not resizes:
        raise UserError(f'The test pipeline of config {cfg.filename} has no Resize, so no test size can be set: add '
                        'one.')
    return resizes
