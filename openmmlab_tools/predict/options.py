"""The options of predictions: their types and ranges are checked here, before anything is loaded."""
from typing import get_args

from openmmlab_tools.data.scales import NamedScale, TileScale
from openmmlab_tools.errors import UserError, check_flag, check_range
from openmmlab_tools.pictures.prediction import ScoreThr, check_score_thr

from .tiles import Tiling


def check_options(batch_size: int = 1, score_thr: ScoreThr | None = None, urls: bool = False, tile: int | None = None,
                  overlap: int | None = None, tile_scale: TileScale = 'train', max_pixels: int | None = None,
                  stream: bool = False) -> Tiling | None:
    """Returns the tiling that options of `predict` and `infer` mean; None without tiles.

    Raises:
        UserError: If an option has a wrong type or is out of its range, or is for tiles, and there are none.
    """
    check_range('batch_size', batch_size, 1, is_whole=True)
    for name, flag in (('urls', urls), ('stream', stream)):
        check_flag(name, flag)
    if score_thr is not None:
        check_score_thr(score_thr)
    if max_pixels is not None:
        check_range('max_pixels', max_pixels, 1, is_whole=True)
    return _tiling(tile, overlap, tile_scale)


def _tiling(side: int | None, overlap: int | None, scale: TileScale) -> Tiling | None:
    """Returns the tiling of a side, an overlap, by default a quarter of the side, and a scale; None without a side."""
    if isinstance(scale, str):
        if scale not in get_args(NamedScale):
            raise UserError(f'tile_scale is {scale!r}, but must be {" or ".join(map(repr, get_args(NamedScale)))}, or '
                            'a number from 0.01 to 100: correct it.')
    else:
        check_range('tile_scale', scale, 0.01, 100)
    if overlap is not None:
        check_range('overlap', overlap, 0, is_whole=True)
    if side is None:
        for name, value, default in (('overlap', overlap, None), ('tile_scale', scale, 'train')):
            if value != default:
                raise UserError(f'{name} is {value}, but there are no tiles: also pass the side of a tile.')
        return None
    check_range('tile', side, 1, is_whole=True)
    overlap = side // 4 if overlap is None else overlap
    check_range('overlap', overlap, 0, side - 1, is_whole=True)
    return Tiling(side, overlap, scale)
