"""Text from data means itself: in a terminal, a shell, HTML and Markdown, and a figure."""
import html
import re
import subprocess
import warnings
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from openmmlab_runs.texts import (
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
    found = subprocess.run(['bash', '-c', command], capture_output=True, check=True).stdout
    wanted = [f'./{part}' if isinstance(part, Path) and str(part).startswith('-') else str(part) for part in encodable]
    assert found.decode('utf-8', 'surrogateescape').split('\0')[:-1] == (wanted or [''])


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
