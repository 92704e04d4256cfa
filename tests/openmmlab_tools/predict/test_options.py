"""Options of predictions have the right type and are in their range, or the message names the option."""
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openmmlab_tools.errors import UserError
from openmmlab_tools.predict.options import check_options
from openmmlab_tools.predict.tiles import Tiling
from tests.helpers import refusal

ODD = st.one_of(st.text(max_size=3), st.binary(max_size=2), st.booleans(), st.complex_numbers(), st.floats(),
                st.integers(-3, 3), st.lists(st.integers(), max_size=2), st.dictionaries(st.integers(), st.integers()),
                st.just(np.arange(2)), st.just(torch.ones(2)), st.just(object()), st.just(np.float32(0.5)))
# What each option may be.
GOOD: dict[str, Any] = dict(
    batch_size=lambda one: is_number(one, int) and one >= 1, max_pixels=lambda one: is_number(one, int) and one >= 1,
    tile=lambda one: is_number(one, int) and one >= 1, overlap=lambda one: is_number(one, int) and 0 <= one < 2,
    tile_scale=lambda one: (isinstance(one, str) and one in ('train', 'config')) or (
        is_number(one, int, float) and 0.01 <= one <= 100),
    score_thr=lambda one: one == {} if isinstance(one, dict) else is_number(one, int, float) and 0 <= one <= 1,
    urls=lambda one: isinstance(one, bool), stream=lambda one: isinstance(one, bool))


def is_number(value: Any, *kinds: type) -> bool:
    return isinstance(value, (*kinds, *[np.floating] * (float in kinds))) and not isinstance(value, bool)


@given(st.sampled_from(sorted(GOOD)), ODD)
def test_an_option_is_accepted_or_the_message_names_it(name: str, value: object) -> None:
    options: Any = {**(dict(tile=2) if name != 'tile' else {}), name: value}
    try:
        check_options(**options)
    except UserError as error:
        assert str(error).startswith(f'{name} ') and 'must' in str(error)
        assert not GOOD[name](value)
    else:
        assert GOOD[name](value)


@pytest.mark.parametrize('options, told', [
    (dict(score_thr='a'), "score_thr is 'a', but must be a number from 0 to 1: correct it."),
    (dict(batch_size=1.5), 'batch_size is 1.5, but must be a whole number of at least 1: correct it.'),
    (dict(tile='100'), "tile is '100', but"), (dict(tile=True), 'tile is True, but'),
    (dict(tile=8, overlap=1.5), 'overlap is 1.5, but must be a whole number of at least 0'),
    (dict(tile_scale='x'), "tile_scale is 'x', but must be 'train' or 'config', or a number from 0.01 to 100"),
    (dict(tile_scale=2.), 'tile_scale is 2.0, but there are no tiles: also pass the side of a tile.'),
    (dict(score_thr={3: 0.5}), 'score_thr has the key 3, but its keys must be names of classes')])
def test_what_is_wrong_is_named(options: dict[str, Any], told: str) -> None:
    assert refusal(check_options, **options).startswith(told)


def test_numbers_of_numpy_are_numbers() -> None:
    assert check_options(np.int64(2), np.float32(0.5), tile=np.int64(8), tile_scale=np.float64(2)) == Tiling(8, 2, 2.)
    assert check_options() is None
