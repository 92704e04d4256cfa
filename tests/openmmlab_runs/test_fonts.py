"""Names in any script are drawn in fonts that have their letters, or a sentence names the package with one."""
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from mmengine.registry import VISUALIZERS
from mmengine.structures import InstanceData, PixelData

from openmmlab_runs import fonts
from openmmlab_runs.files import write_figure
from openmmlab_runs.pictures.painting import write_any_script


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


@pytest.mark.parametrize(('name', 'packages'), [
    ('细胞', 'fonts-noto-cjk'), ('カタ', 'fonts-noto-cjk'), ('세포', 'fonts-noto-cjk'), ('कोशिका', 'fonts-noto-core'),
    ('🚗\ufe0f', 'fonts-symbola'), ('车🚗', 'fonts-noto-cjk fonts-symbola')])
def test_a_sentence_says_what_to_install(name: str, packages: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
                                         ) -> None:
    told = []
    monkeypatch.setattr(fonts, '_system_fonts', lambda region: [])
    monkeypatch.setattr(fonts, '_warn', told.append)
    figure = Figure()
    figure.text(0, 0, name)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        write_figure(tmp_path / 'a.png', figure)
        write_figure(tmp_path / 'a.png', figure)
    assert [one for one in told if one.startswith('no font of this system has ')] == told[:1]
    assert told[0].endswith(f'on Debian and Ubuntu by apt install {packages}.')


@pytest.mark.parametrize('kind', ['mmdet.DetLocalVisualizer', 'mmseg.SegLocalVisualizer'])
def test_the_libraries_write_with_these_fonts(kind: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    choose = fonts.choose_fonts
    for module in ('openmmlab_runs.fonts', 'openmmlab_runs.pictures.painting'):
        monkeypatch.setattr(f'{module}.choose_fonts', lambda text: (choose(text), chosen.append(text)))
    visualizer = VISUALIZERS.get(kind)()
    write_any_script(visualizer)
    image = np.zeros((200, 200, 3), np.uint8)
    if kind.startswith('mmdet'):
        found = InstanceData(bboxes=np.array([[5, 5, 150, 150]]), labels=np.array([0]))
        visualizer._draw_instances(image, found, [f'cat {other}'], [(255, 0, 0)])
    else:
        visualizer._draw_sem_seg(image, PixelData(data=np.zeros((1, 200, 200), int)), [f'cat {other}'], [(255, 0, 0)])
    assert chosen and fonts.fonts_for(f'cat {other}')[0] in chosen[0].get_fontfamily()
    assert len(np.unique(visualizer.get_image().reshape(-1, 3), axis=0)) > 2  # the text, too
