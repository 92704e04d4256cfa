import runpy
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.helpers import ROOT, Models
from tests.tools.conftest import Run

httpx = pytest.importorskip('httpx', reason='gradio brings it')
gr = pytest.importorskip('gradio', reason="pip install -e '.[demo]' into another environment (CONTRIBUTING.md)")
TOOL = ROOT / 'demo/gradio_app.py'
App = dict[str, Any]


@pytest.fixture(scope='module')
def app() -> App:
    """Names that the file defines, and their values."""
    return runpy.run_path(str(TOOL))


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_a_checkpoint_brings_its_size_and_predicts_at_all(scope: str, app: App, image: Path, trained: Models) -> None:
    checkpoint = str(trained[scope].checkpoint)
    side, score_thr, block = app['choose'](checkpoint)
    assert (side.value, block.value, score_thr.visible) == (160, '2.1', scope == 'mmdet')
    small, large = (app['predict'](image, checkpoint, side, 0) for side in (64, 160))
    assert small.shape == large.shape == (100, 200, 3) and not np.array_equal(small, large)
    unsure = app['predict'](image, checkpoint, 160, 1)
    assert np.array_equal(unsure, large) == (scope == 'mmseg')


def test_attention_of_the_pixel_that_is_clicked(app: App, image: Path, trained: Models) -> None:
    checkpoint = str(trained['mmseg'].checkpoint)
    clicked = app['clicked'](gr.SelectData(None, dict(index=[150, 99], value=None)))
    picture, sentence = app['attend'](image, checkpoint, 160, '2.1', clicked)
    assert picture.shape == (256, 512, 3) and 'the query at x=120, y=79 gives' in sentence
    other, _ = app['attend'](image, checkpoint, 160, '0.0', clicked)
    assert not np.array_equal(picture, other)
    # Without an image or a click nothing is drawn.
    assert app['predict'](None, checkpoint, 160, 0.3) is None
    for path, pixel in ((None, [0, 0]), (image, None)):
        assert app['attend'](path, checkpoint, 160, '2.1', pixel) == (None, app['HINT'])


def test_what_is_wrong_is_one_sentence_in_the_page(app: App, image: Path, trained: Models, tmp_path: Path) -> None:
    broken = tmp_path / 'broken.png'
    broken.write_text('no image')
    checkpoint = str(trained['mmseg'].checkpoint)
    large = tmp_path / 'large.png'
    Image.new('1', (4001, 4000)).save(large)
    too_large = 'large.png has 4001 x 4000 pixels (width x height), but at most 16000000 are allowed: '
    for part, call in (
            ('broken.png cannot be read: it is damaged or no', lambda: app['predict'](broken, checkpoint, 64, 0)),
            ('block 9.9 does not exist: ', lambda: app['attend'](image, checkpoint, 64, '9.9', [0, 0])),
            (too_large, lambda: app['predict'](large, checkpoint, 64, 0)),
            (too_large, lambda: app['attend'](large, checkpoint, 64, '2.1', [0, 0]))):
        with pytest.raises(gr.Error) as caught:
            call()
        assert part in caught.value.message and '\n' not in caught.value.message


def test_work_dirs_and_checkpoints_are_served(app: App, run_tool: Run, trained: Models, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    monkeypatch.setattr(gr.Blocks, 'launch', lambda app, **options: launched.append((app, options)))
    assert run_tool(str(TOOL), trained['mmdet'].checkpoint.parent, trained['mmseg'].checkpoint, '--port', 7999) == ''
    [(page, options)] = launched
    assert (options['server_name'], options['server_port']) == ('127.0.0.1', 7999)
    # Uploads are limited, and do not stay.
    assert options['max_file_size'] and page.delete_cache
    choice = next(block for block in page.blocks.values() if isinstance(block, gr.Dropdown))
    assert [value for _, value in choice.choices] == [str(files.checkpoint) for files in trained.values()]
    assert run_tool(str(TOOL), tmp_path) == (
        f'error: {tmp_path} is neither a checkpoint nor a work dir with one: check the path.')
    shutil.copytree(trained['mmseg'].checkpoint.parent, tmp_path / 'moved')
    for was in ('/gone/iter_2.pth', str(trained['mmseg'].checkpoint)):
        (tmp_path / 'moved/last_checkpoint').write_text(was)
        assert app['find_checkpoint'](tmp_path / 'moved') == tmp_path / 'moved/iter_2.pth'


def test_a_port_that_is_taken_is_one_sentence(run_tool: Run, trained: Models) -> None:
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        message = run_tool(str(TOOL), trained['mmseg'].checkpoint, '--port', port)
    assert message.startswith(f'error: the page cannot be served at 127.0.0.1, port {port} (')
