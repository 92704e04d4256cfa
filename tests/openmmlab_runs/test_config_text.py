"""Texts of configs: mmengine reads the same values, runs nothing and reads no variable."""
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config

from openmmlab_runs.config_text import WIDTH, assignments, comment, to_source
from tests.odd_texts import names

values = st.recursive(
    st.one_of(names, st.integers(), st.floats(allow_nan=False), st.none(), st.booleans(), st.binary(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple),
                            st.dictionaries(names, inner, max_size=4)), max_leaves=12)


def read(text: str) -> dict[str, Any]:
    """The values of a config with this text."""
    with TemporaryDirectory() as folder:
        path = Path(folder, 'config.py')
        path.write_text(text, encoding='utf-8')
        cfg = Config.fromfile(path)
        assert not cfg.env_variables
        return cfg.to_dict()


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(values, names.filter(lambda key: key and not key.startswith('__')))
def test_any_value_is_read_as_it_was(value: object, key: str) -> None:
    assert read(assignments({key: value}))[key] == value


@settings(max_examples=200, deadline=None)
@given(st.lists(names, max_size=4))
def test_a_comment_ends_where_it_should(lines: list[str]) -> None:
    text = comment(lines)
    assert read(f'{text}\nvalue = 1\n') == dict(value=1)
    assert all(line.startswith('# ') for line in text.splitlines() if line.strip('#'))


@pytest.mark.parametrize('value', [
    dict(a=[dict(b=(1,))], c=None), {'a.b': dict(c='x')}, [(1, 2), 'y'], dict(), (), {'class': 1}, {None: 1}, {1: 2},
    {'\ufb01': 1}, {"it's": '{{'}, math.inf, [np.float32(0.5), np.int64(3)], b'{{'], ids=repr)
def test_source_evaluates_to_the_value(value: object) -> None:
    assert eval(to_source(value)) == value


def test_long_lines_are_broken() -> None:
    value = dict(model=dict(classes=tuple(f'class {index}' for index in range(40)), short=[1, 2, 3]))
    text = assignments(value)
    assert max(map(len, text.splitlines())) <= WIDTH and '\n    short=[1, 2, 3],\n' in text
    assert read(text) == value
