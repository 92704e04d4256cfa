from collections.abc import Callable

import pytest
from mmengine.config import Config

from cpvt_mm.analysis.windows import Mode, Windows, resolve_mode, set_mode
from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from tests.conftest import UPERNET


@pytest.fixture
def segmentor() -> Callable[..., Config]:

    def load(**test_cfg: object) -> Config:
        cfg = load_config(UPERNET)
        cfg.model.test_cfg = test_cfg
        return cfg

    return load


SLIDE = dict(mode='slide', crop_size=(32, 64), stride=(16, 64))


@pytest.mark.parametrize('test_cfg, arguments, mode', [
    (dict(mode='whole'), (), 'whole'),
    (dict(), (), 'whole'),
    (SLIDE, (), Windows((32, 64), (16, 64))),
    (SLIDE, ('slide', None, [8, 8]), Windows((32, 64), (8, 8))),
    (SLIDE, ('whole',), 'whole'),
    (dict(mode='whole'), ('slide', [32, 32], [32, 32]), Windows((32, 32), (32, 32))),
])
def test_a_mode_is_the_configs_but_for_what_is_given(segmentor: Callable[..., Config], test_cfg: dict,
                                                     arguments: tuple, mode: Mode) -> None:
    assert resolve_mode(segmentor(**test_cfg), *arguments) == mode


@pytest.mark.parametrize('crop_size, stride, message', [
    (None, [8, 8], 'has no crop_size'),
    ([8, 8], None, 'has no stride'),
    ([8, 8], [8, 9], '--stride is 8 9, but must be from 1 to --crop-size'),
    ([8, 8], [0, 8], '--stride is 0 8, but must be from 1 to --crop-size'),
])
def test_windows_that_miss_something_are_refused(segmentor: Callable[..., Config], crop_size: list | None,
                                                 stride: list | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_mode(segmentor(mode='whole'), 'slide', crop_size, stride)


def test_a_mode_is_set_beside_what_else_there_is(segmentor: Callable[..., Config]) -> None:
    cfg = segmentor(mode='whole', other=1)
    set_mode(cfg, Windows((32, 64), (16, 64)))
    assert cfg.model.test_cfg == dict(SLIDE, other=1)
    set_mode(cfg, 'whole')
    assert resolve_mode(cfg) == 'whole'
