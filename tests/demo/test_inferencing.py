import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import cv2
import numpy as np
import pytest
import torch
from mmengine.infer import BaseInferencer
from mmengine.logging import HistoryBuffer
from mmengine.structures import InstanceData
from PIL import Image

from cpvt_lab.attention import collect
from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from cpvt_mm.files import read_image
from cpvt_mm.loading import load_backbone, to_input
from cpvt_mm.weights.reading import read_checkpoint
from inferencing import build_inferencer, paint
from shown_model import ShownModel
from tests.conftest import ROOT, refusal
from tests.demo.conftest import Models, random_image
from tests.pictures import MOVED, is_painted
from tests.tools.conftest import Capture, Exploit, Run

TOOL = '../demo/image_demo.py'
Shown = dict[str, ShownModel]


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_has_all_weights_of_a_plain_checkpoint(scope: str, trained: Models, tmp_path: Path) -> None:
    config, checkpoint = trained[scope]
    content, path = read_checkpoint(checkpoint), tmp_path / 'plain.pth'
    torch.save(dict(content, message_hub=dict(log_scalars=dict(loss=HistoryBuffer([1.], [1])))), path)  # as mmengine's
    model = build_inferencer(load_config(config), path, 'cpu').model
    torch.testing.assert_close(dict(model.state_dict()), dict(content['state_dict']), rtol=0, atol=0)
    assert not model.training


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
@pytest.mark.parametrize('is_known', [True, False])
def test_names_are_those_of_the_checkpoint_or_else_of_the_config(is_known: bool, scope: str, trained: Models,
                                                                 image: Path, tmp_path: Path) -> None:
    config, checkpoint = trained[scope]
    cfg = load_config(config)
    known, names = dict(cfg.test_dataloader.dataset.metainfo), list(cfg.test_dataloader.dataset.metainfo.classes)
    meta = dict(dataset_meta=dict(known, classes=names[::-1])) if is_known else {}
    torch.save(dict(state_dict=read_checkpoint(checkpoint)['state_dict'], meta=meta), tmp_path / 'a.pth')
    inferencer = build_inferencer(cfg, tmp_path / 'a.pth', 'cpu')
    paint(inferencer, image)
    assert list(inferencer.visualizer.dataset_meta['classes']) == (names[::-1] if is_known else names)


@pytest.mark.parametrize('change, message', [
    (lambda content: content['state_dict'].popitem(), r'part\.pth does not fit the model .*1 missing'),
    (lambda content: content.update(extra=Exploit()), r'part\.pth is damaged, or contains code')])
def test_a_checkpoint_that_does_not_fit_or_holds_code(change: Callable, message: str, trained: Models, tmp_path: Path
                                                      ) -> None:
    content = read_checkpoint(trained['mmseg'].checkpoint)
    change(content)
    torch.save(content, tmp_path / 'part.pth')
    with pytest.raises(UserError, match=message):
        build_inferencer(load_config(trained['mmseg'].config), tmp_path / 'part.pth', 'cpu')
    assert not Path('hacked').exists()


def test_a_device_that_is_not_there_and_another_library_are_refused(trained: Models) -> None:
    for device in ('tpu', 'cuda:99'):
        told = refusal(build_inferencer, load_config(trained['mmseg'].config), trained['mmseg'].checkpoint, device)
        assert f"device '{device}' cannot be used" in told
    told = refusal(build_inferencer, load_config(ROOT / 'configs/cpvt/cpvt-ti_16xb64_in1k.py'), 'x.pth')
    assert 'is for mmpretrain, but only predictions of mmdet and mmseg can be' in told


@pytest.fixture
def detector(trained: Models, monkeypatch: pytest.MonkeyPatch) -> BaseInferencer:
    """It finds one object in every image, with a score of 0.9, at the top left of 90 x 50 pixels."""
    inferencer = build_inferencer(load_config(trained['mmdet'].config), trained['mmdet'].checkpoint, 'cpu')
    forward = inferencer.forward

    def find(data: object) -> object:
        samples = forward(data)
        samples[0].pred_instances = InstanceData(
            bboxes=torch.tensor([[10., 10, 90, 50]]), labels=torch.tensor([0]), scores=torch.tensor([0.9]))
        return samples

    monkeypatch.setattr(inferencer, 'forward', find)
    return inferencer


def test_paints_the_boxes_that_are_predicted_and_nothing_else(detector: BaseInferencer, tmp_path: Path) -> None:
    pixels = random_image(tmp_path / 'a.png', 120, 160)
    painted = paint(detector, tmp_path / 'a.png')
    colour = detector.visualizer.dataset_meta['palette'][0]
    is_line = (abs(painted - np.array(colour)) <= 255 / 5 + 1).all(axis=2)  # a fifth of the image shines through
    for side in (10, 50):
        assert is_line[side - MOVED:side + MOVED + 1, 10:90].any(axis=0).all()
    for side in (10, 90):
        assert is_line[10:50, side - MOVED:side + MOVED + 1].any(axis=1).all()
    outside = np.ones((120, 160), bool)
    outside[9 - MOVED:52 + MOVED, 9 - MOVED:92 + MOVED] = False  # lines are up to three pixels wide
    assert not is_painted(painted, pixels)[outside].any()
    # Names and scores, which can be left out.
    inside = np.s_[14:46, 14:86]
    assert is_painted(painted, pixels)[inside].any()
    assert not is_painted(paint(detector, tmp_path / 'a.png', labels=False), pixels)[inside].any()
    assert not is_painted(paint(detector, tmp_path / 'a.png', score_thr=0.9), pixels).any()


def test_lines_are_thinner_on_small_images(detector: BaseInferencer, tmp_path: Path) -> None:
    paints = []
    for side in (120, 500):
        Image.new('RGB', (side, side)).save(tmp_path / 'a.png')
        paints.append(paint(detector, tmp_path / 'a.png', labels=False)[:, 50].sum(dtype=int))
    assert 0.5 < paints[0] / paints[1] < 0.7


@pytest.mark.parametrize('side, labels, expected', [(100, True, False), (200, True, True), (200, False, False)])
def test_a_segmentor_writes_labels_that_are_legible(side: int, labels: bool, expected: bool,
                                                    trained: Models, tmp_path: Path) -> None:
    inferencer = build_inferencer(load_config(trained['mmseg'].config), trained['mmseg'].checkpoint, 'cpu')
    random_image(tmp_path / 'a.png', side, side + 1)
    with patch('cv2.putText', wraps=cv2.putText) as put_text:
        assert paint(inferencer, tmp_path / 'a.png', labels).shape == (side, side + 1, 3)
    assert put_text.called is expected


@pytest.fixture
def images(toy_shapes: Path, tmp_path: Path) -> Path:
    """A folder of two images that differ in what follows the dot only, and one of another size."""
    folder = tmp_path / 'images'
    folder.mkdir()
    first, second = sorted((toy_shapes / 'images/validation').iterdir())[:2]
    Image.open(first).save(folder / 'a.jpg')
    Image.open(first).transpose(Image.Transpose.ROTATE_180).save(folder / 'a.png')
    Image.open(second).save(folder / 'b.JPG', format='jpeg')
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / 'out'


@pytest.fixture
def run(run_tool: Run, trained: Models, out: Path) -> Run:
    """Runs the tool with the toy model of a library; it paints to `out`."""
    options = ('--out-dir', out, '--device', 'cpu')
    return lambda scope, image, *args: run_tool(TOOL, image, *trained[scope], *options, *args)


def read(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert('RGB'))


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_paints_images_under_their_names(scope: str, run: Run, images: Path, out: Path, capsys: Capture) -> None:
    assert run(scope, images) == ''
    printed = capsys.readouterr().out
    assert 'Painting' in printed and f'3 of 3 images painted in {out}' in printed
    painted = {path.name: read(path) for path in out.iterdir()}
    assert {name: image.shape for name, image in painted.items()} == {
        f'{path.name}.png': read(path).shape for path in images.iterdir()}
    assert not np.array_equal(painted['a.jpg.png'], painted['a.png.png'])
    if scope == 'mmseg':  # every pixel is painted over
        assert not np.array_equal(painted['b.JPG.png'], read(images / 'b.JPG'))
    else:  # colours are those of the image: after two iterations no box is sure enough to be painted
        assert not is_painted(painted['a.png.png'], read(images / 'a.png')).any()


def test_labels_and_threshold_reach_the_painter(run: Run, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, painted = [], np.zeros((8, 8, 3), np.uint8)
    monkeypatch.setattr('inferencing.paint', lambda inferencer, path, *options: calls.append(options) or painted)
    assert run('mmdet', images / 'a.png') == run('mmdet', images / 'a.png', '--no-labels', '--score-thr', 0) == ''
    assert calls == [(True, 0.3, 16_000_000), (False, 0, 16_000_000)]
    assert run('mmseg', images, '--score-thr', 0.5).startswith('error: --score-thr is for detectors, but config')


def test_names_images_that_it_cannot_read_or_that_lose_bits(run: Run, images: Path, out: Path, capsys: Capture) -> None:
    (images / 'a.jpeg').write_bytes(b'')
    (images / 'c.png').write_text('no image')
    for name in ('d.png', 'e.TIF'):
        cv2.imwrite(str(images / name), np.full((32, 32), 4080, np.uint16))
    message = run('mmseg', images)
    assert message.startswith('error: 2 of 7 images are not painted (a.jpeg, c.png): repair, scale or remove them')
    printed = capsys.readouterr().out.replace('\n', '')
    assert f'image {images}/a.jpeg cannot be read' in printed and '5 of 7 images painted' in printed
    assert sorted(path.name for path in out.iterdir()) == [
        'a.jpg.png', 'a.png.png', 'b.JPG.png', 'd.png.png', 'e.TIF.png']
    # A warning of the first alone.
    assert printed.count('warning: ') == printed.count('has 16 bits per channel, but is read as 8 bits') == 1
    assert f'{images}/d.png has 16 bits' in printed


def test_images_that_the_model_cannot_take_are_left_out(run: Run, images: Path, out: Path, capsys: Capture) -> None:
    random_image(images / 'line.png', 1, 10000)
    random_image(images / 'large.png', 300, 400)
    assert run('mmdet', images, '--max-pixels', 100_000) == (
        'error: 2 of 5 images are not painted (large.png, line.png): repair, scale or remove them '
        "(--max-pixels allows larger ones; a segmentor then needs less memory with model.test_cfg.mode='slide').")
    printed = capsys.readouterr().out.replace('\n', '')
    assert f'image {images}/large.png has 400 x 300 pixels (width x height), but at most 100000 are' in printed
    assert f'image {images}/line.png cannot be predicted (' in printed and '3 of 5 images painted' in printed
    assert sorted(path.name for path in out.iterdir()) == ['a.jpg.png', 'a.png.png', 'b.JPG.png']


def test_what_a_user_gets_wrong_is_one_sentence(run: Run, images: Path, out: Path, tmp_path: Path) -> None:
    assert run('mmseg', images, '--out-dir', images) == (
        f'error: --out-dir {images} is the folder of the images: choose another.')
    (tmp_path / 'empty').mkdir()
    assert run('mmseg', tmp_path / 'empty').startswith(f"error: folder {tmp_path / 'empty'} has no image")
    assert run('mmseg', 'no.jpg') == 'error: no.jpg does not exist: pass an image, or a folder of images.'
    assert not out.exists()


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
    assert np.array_equal(at_home, paint(inferencer, image, score_thr=0))
    assert np.array_equal(small, model.paint(image, 64, score_thr=0))
    assert small.shape == at_home.shape and not np.array_equal(small, at_home)


def test_draws_the_attention_of_a_pixel_of_the_file(shown: Shown, image: Path, trained: Models,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
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
