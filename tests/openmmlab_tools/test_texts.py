"""Text from data means itself: in a config, a terminal, a shell, HTML and Markdown, and a figure, in any script."""
import html
import math
import re
import subprocess
import warnings
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from mmengine.config import Config

from openmmlab_tools import fonts
from openmmlab_tools.config_text import WIDTH, assignments, comment, to_source
from openmmlab_tools.files import write_figure
from openmmlab_tools.pictures.painting import paint_boxes, paint_label_map, paint_name
from openmmlab_tools.texts import (
    CONTROLS,
    LONGEST_LABEL,
    figure_text,
    label,
    markdown_table,
    markup,
    printable,
    printable_lines,
    shell,
)
from tests.odd_texts import ODD, file_names, names

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


@given(names)
def test_nothing_controls_a_terminal(text: str) -> None:
    shown = printable(text)
    assert not CONTROLS.search(shown) and '\n' not in shown
    assert printable(shown) == shown and printable_lines(text).count('\n') == text.count('\n')
    shown.encode()  # no half of a character
    assert printable('a\x1b[31m\nb\udcff\u202e') == r'a\x1b[31m\nb\udcff\u202e'
    assert printable_lines('a\tb\nné 名') == 'a\tb\nné 名'


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(names.map(lambda name: name.replace('\0', '')), file_names.map(Path)), min_size=1,
                max_size=4))
def test_a_shell_gets_the_parts_back(parts: list[str | Path]) -> None:
    encodable = [part for part in parts if not re.search('[\ud800-\udc7f\udd00-\udfff]', str(part))]
    command = shell('printf', r'%s\0', *encodable)
    assert not CONTROLS.search(command)
    actual = subprocess.run(['bash', '-c', command], capture_output=True, check=True).stdout
    wanted = [f'./{part}' if isinstance(part, Path) and str(part).startswith('-') else str(part) for part in encodable]
    assert actual.decode('utf-8', 'surrogateescape').split('\0')[:-1] == (wanted or [''])


@given(names)
def test_markup_shows_the_text(text: str) -> None:
    written = markup(text)
    assert html.unescape(written) == printable(text)
    assert not re.search(r'[<>"|`$*\[\]\\~]', written)


@given(st.lists(st.tuples(names, st.integers())))
def test_cells_of_a_table_stay_in_their_columns(rows: list[tuple[str, int]]) -> None:
    head, line, *body = markdown_table(('a|b', 'c'), rows).splitlines()
    assert (head, line) == ('| a&#124;b | c |', '|---|---|')
    cells = [row.removeprefix('| ').removesuffix(' |').split(' | ') for row in body]
    assert [[*map(html.unescape, row)] for row in cells] == [[printable(name), str(number)] for name, number in rows]


@pytest.mark.parametrize('name', [*ODD, r'$\frac{$ a $', '_private', '$a$', r'\$a$', 'n' * 300, '\ud800'])
def test_a_figure_shows_a_name(name: str) -> None:
    figure = Figure()
    figure.suptitle(figure_text(name))
    axes = figure.add_subplot(title=label(name))
    axes.plot([0, 1], label=label(name))
    axes.set_xticks([0], [label(name)], rotation=90)
    legend = axes.legend()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # glyphs that the font does not have
        figure.savefig(BytesIO(), format='png')
    shown, = legend.get_texts()
    assert shown.get_text().replace(r'\$', '$').strip() == label(name).replace(r'\$', '$').strip()
    assert len(label(name).replace(r'\$', '$')) <= LONGEST_LABEL + 4


@pytest.fixture
def other() -> str:
    """A letter that matplotlib's default font lacks, and another font that comes with matplotlib has."""
    default = fonts._letters(findfont(FontProperties()))
    return chr(min(fonts._letters(findfont('STIXGeneral')) - default))


def test_a_font_that_has_the_letters_is_added(other: str) -> None:
    fonts.fonts_for.cache_clear()
    assert fonts.fonts_for('Ünïcødé ядро') == ()
    name, = fonts.fonts_for(f'cat {other}')
    assert ord(other) in fonts._letters(findfont(name))


def test_a_sentence_says_what_to_install_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: list) -> None:
    monkeypatch.setattr(fonts, '_system_fonts', list)
    fonts.fonts_for.cache_clear()
    figure = Figure()
    figure.text(0, 0, '车🚗\ufe0f')
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        write_figure(tmp_path / 'a.png', figure)
        write_figure(tmp_path / 'a.png', figure)
    (level, told), = log
    assert level == 'WARNING' and told.startswith('no font of this system has 车🚗, and a box is drawn')


def test_names_on_pictures_have_these_fonts(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, image, name = [], np.zeros((200, 200, 3), np.uint8), f'cat {other}'
    monkeypatch.setattr(fonts, 'fonts_for', lambda text: chosen.append(text) or ())
    painted = (paint_boxes(image, np.array([[5, 25, 150, 150]]), np.array([0]), [name]), paint_name(image, name),
               paint_label_map(image, np.zeros((200, 200), int), [name], palette=[(255, 0, 0)]))
    assert chosen == [name] * 3
    for one in painted:
        assert len(np.unique(one.reshape(-1, 3), axis=0)) > 2  # the text, too
