import shutil
from pathlib import Path

import numpy as np
import pytest

from cpvt_mm.loading import load_backbone
from lab.attention import collect
from lab.shown_model import ShownModel
from openmmlab_runs.engine import load_config
from openmmlab_runs.images import read_image
from openmmlab_runs.loading import to_input
from openmmlab_runs.predicting import build_inferencer, paint, predict
from tests.conftest import Models, refusal

Shown = dict[str, ShownModel]


@pytest.fixture(scope='module')
def shown(trained: Models) -> Shown:
    """Both in one process, as on a page."""
    return {scope: ShownModel(files.checkpoint) for scope, files in trained.items()}


def test_begins_with_the_size_of_the_config_and_a_block_behind_a_peg(shown: Shown) -> None:
    assert {scope: (model.side, model.block, model.is_detector) for scope, model in shown.items()} == {
        'mmdet': (160, '2.1', True), 'mmseg': (160, '2.1', False)}
    assert shown['mmdet'].blocks[0] == '0.0' and '2.1' in shown['mmdet'].blocks


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_paints_as_in_tests_and_at_other_sizes(scope: str, shown: Shown, image: Path, trained: Models) -> None:
    model = shown[scope]
    small = model.paint(image, 64, score_thr=0)
    at_home = model.paint(image, model.side, score_thr=0)
    inferencer = build_inferencer(load_config(trained[scope].config), trained[scope].checkpoint)
    np.random.seed(0)  # of the colours
    assert np.array_equal(at_home, paint(inferencer, image, score_thr=0)[0])
    assert np.array_equal(small, model.paint(image, 64, score_thr=0))
    assert small.shape == at_home.shape and not np.array_equal(small, at_home)


def test_draws_the_attention_of_a_pixel_of_the_file(shown: Shown, image: Path, trained: Models,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    picture, _ = shown['mmdet'].draw_attention(image, 160, '3.1', (0, 0))
    assert picture.shape == (256, 512, 3) and picture.dtype == np.uint8
    drawn = []
    monkeypatch.setattr('lab.shown_model.overlay_image', lambda *args: drawn.append(args))
    model = shown['mmseg']
    sentences = [model.draw_attention(image, side, '1.1', (150, 99))[1] for side in (160, 320)]
    (_, _, mark), (seen, overlay, other_mark) = drawn
    assert (mark, other_mark) == ((120, 79), (240, 158))  # in images of 160 x 80 and of 320 x 160 pixels
    cfg = load_config(trained['mmseg'].config)
    resized = read_image(image, (160, 320))
    assert np.array_equal(seen, resized)
    found = collect(load_backbone(cfg, trained['mmseg'].checkpoint), to_input(resized, cfg), ['1.1'])['1.1']
    weights = found.of_query((240, 158)).mean(dim=0)
    assert overlay.values.equal(weights) and overlay.cell == found.key_cell
    assert sentences[0].startswith('The model sees 160 x 80 pixels (width x height). In block 1.1, the query at x=120, '
                                   'y=79 gives ')
    assert f'gives {weights.max():.1%} of its attention' in sentences[1]


def test_a_model_is_stopped_that_takes_too_long(image: Path, trained: Models) -> None:
    model = ShownModel(trained['mmdet'].checkpoint, seconds=0)
    for call, options in ((model.paint, (0.3,)), (model.draw_attention, (model.block, (0, 0)))):
        assert refusal(call, image, 64, *options) == (
            'the model takes over 0 seconds and is stopped: choose a smaller test size.')
    # Only there: other models of the process compute on.
    assert predict(image, *trained['mmdet'], device='cpu')


def test_one_config_lies_beside_the_checkpoint(tmp_path: Path, trained: Models) -> None:
    config, checkpoint = trained['mmseg']
    shutil.copy(checkpoint, tmp_path)
    assert 'has 0 configs (*.py), but must have one: put' in refusal(ShownModel, tmp_path / checkpoint.name)
    for name in ('a.py', 'b.py'):
        shutil.copy(config, tmp_path / name)
    assert 'has 2 configs (*.py), but must have one: put' in refusal(ShownModel, tmp_path / checkpoint.name)


def test_what_cannot_be_read_or_drawn_is_said_in_a_sentence(shown: Shown, image: Path, broken: Path, trained: Models,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    for call, options in ((shown['mmseg'].paint, (0.3,)), (shown['mmseg'].draw_attention, ('0.0', (0, 0)))):
        assert 'broken.png cannot be read: it is damaged or not an image' in refusal(call, broken, 64, *options)
    assert 'iter_3.pth' in refusal(ShownModel, trained['mmseg'].checkpoint.with_name('iter_3.pth'))
    monkeypatch.setattr(shown['mmseg'], 'backbone', None)  # one of another kind
    told = refusal(shown['mmseg'].draw_attention, image, 64, None, (0, 0))
    assert 'is neither a CPVT nor a PyramidCPVT, so its attention cannot be drawn' in told
