import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cpvt_lab.attention import collect
from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from cpvt_mm.files import read_image
from cpvt_mm.loading import load_backbone, to_input
from inferencing import build_inferencer, paint
from shown_model import ShownModel
from tests.conftest import Trained


@pytest.fixture(scope='module')
def shown(trained: dict[str, Trained]) -> dict[str, ShownModel]:
    """Both in one process, as on a page."""
    return {scope: ShownModel(files.checkpoint) for scope, files in trained.items()}


def test_begins_with_the_size_of_the_config_and_a_block_behind_a_peg(shown: dict[str, ShownModel]) -> None:
    assert {scope: (model.side, model.block, model.is_detector) for scope, model in shown.items()} == {
        'mmdet': (160, '2.1', True), 'mmseg': (160, '2.1', False)}
    assert shown['mmdet'].blocks[0] == '0.0' and '2.1' in shown['mmdet'].blocks


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_paints_as_the_config_tests_and_at_other_sizes(scope: str, shown: dict[str, ShownModel], image: Path,
                                                       trained: dict[str, Trained]) -> None:
    config, checkpoint = trained[scope]
    model = shown[scope]
    small = model.paint(image, 64, score_thr=0)
    at_home = model.paint(image, model.side, score_thr=0)
    np.random.seed(0)  # of the colours
    assert np.array_equal(at_home, paint(build_inferencer(load_config(config), checkpoint), image, score_thr=0))
    assert np.array_equal(small, model.paint(image, 64, score_thr=0))
    assert small.shape == at_home.shape and not np.array_equal(small, at_home)


def test_draws_the_attention_of_a_pixel_of_the_file(
        shown: dict[str, ShownModel], image: Path, trained: dict[str, Trained], monkeypatch: pytest.MonkeyPatch
        ) -> None:
    picture, _ = shown['mmdet'].draw_attention(image, 160, '3.1', (0, 0))
    assert picture.shape == (256, 512, 3) and picture.dtype == np.uint8
    drawn = []
    monkeypatch.setattr('shown_model.overlay_image', lambda *args: drawn.append(args))
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


def test_a_model_of_another_backbone_is_shown_without_attention(shown: dict[str, ShownModel], image: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown['mmseg'], 'backbone', None)
    with pytest.raises(UserError, match='is neither a CPVT nor a PyramidCPVT, so its attention cannot be drawn'):
        shown['mmseg'].draw_attention(image, 64, None, (0, 0))


@pytest.mark.parametrize('configs', [[], ['a.py', 'b.py']])
def test_one_config_lies_beside_the_checkpoint(configs: list[str], tmp_path: Path, trained: dict[str, Trained]) -> None:
    config, checkpoint = trained['mmseg']
    shutil.copy(checkpoint, tmp_path)
    for name in configs:
        shutil.copy(config, tmp_path / name)
    with pytest.raises(UserError, match=rf'has {len(configs)} configs \(\*\.py\), but must have one: put'):
        ShownModel(tmp_path / checkpoint.name)


def test_what_cannot_be_read_is_said_in_a_sentence(shown: dict[str, ShownModel], broken: Path,
                                                   trained: dict[str, Trained]) -> None:
    calls: list[Callable] = [lambda: shown['mmseg'].paint(broken, 64, 0.3),
                             lambda: shown['mmseg'].draw_attention(broken, 64, '0.0', (0, 0))]
    for call in calls:
        with pytest.raises(UserError, match=r'broken\.png cannot be read: it is damaged or not an image'):
            call()
    with pytest.raises(UserError, match=r'iter_3\.pth'):
        ShownModel(trained['mmseg'].checkpoint.with_name('iter_3.pth'))
