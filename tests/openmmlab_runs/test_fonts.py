"""Names in any script are drawn in fonts that have their letters, or a sentence names the package with one."""
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont

from openmmlab_runs import fonts
from openmmlab_runs.files import write_figure
from openmmlab_runs.pictures.painting import paint_boxes, paint_label_map, paint_name


@pytest.fixture(autouse=True)
def forgetful() -> None:
    fonts.fonts_for.cache_clear()


@pytest.fixture
def other() -> str:
    """A letter that matplotlib's default font lacks, and another font that comes with matplotlib has."""
    default = fonts._letters(findfont(FontProperties()))
    return chr(min(fonts._letters(findfont('STIXGeneral')) - default))


def test_a_font_that_has_the_letters_is_added(other: str) -> None:
    assert fonts.fonts_for('Ünïcødé ядро') == ()
    name, = fonts.fonts_for(f'cat {other}')
    assert ord(other) in fonts._letters(findfont(name))


def test_a_sentence_says_what_to_install_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: list) -> None:
    monkeypatch.setattr(fonts, '_system_fonts', list)
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
