"""The sizes that images are tested at."""
import re
from typing import NamedTuple

from mmengine.config import Config

from cpvt_mm.errors import UserError


class Size(NamedTuple):
    """The `scale` of a Resize, in pixels; a square's is written as one number."""
    width: int
    height: int

    def __str__(self) -> str:
        return f'{self.width}' if self.width == self.height else f'{self.width}x{self.height}'


def parse_size(text: str) -> Size:
    """Reads a size: '512' or '1333x800'.

    Raises:
        UserError: If it is neither, or 0.
    """
    match = re.fullmatch(r'(\d+)(?:x(\d+))?', text)
    size = Size(int(match[1]), int(match[2] or match[1])) if match else Size(0, 0)
    if min(size) < 1:
        raise UserError(f'size {text!r} is no size of an image: give the pixels of a side, such as 512, or of both, '
                        'such as 1333x800.')
    return size


def set_test_size(cfg: Config, size: Size) -> None:
    """Has the test pipeline resize images to `size`; with `keep_ratio`, to fit into it, longer side along longer side.

    Raises:
        UserError: If the pipeline has no Resize.
    """
    pipeline = cfg.test_dataloader.dataset.get('pipeline') or ()
    resizes = [transform for transform in pipeline if str(transform.type).split('.')[-1] == 'Resize']
    if not resizes:
        raise UserError(f'The test pipeline of config {cfg.filename} has no Resize, so no test size can be set: add '
                        'one.')
    for transform in resizes:
        transform.scale = tuple(size)
