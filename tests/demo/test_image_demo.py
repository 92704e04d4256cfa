from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.conftest import Trained
from tests.pictures import is_painted

TOOL = '../demo/image_demo.py'


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
def run(run_tool: Callable[..., str], trained: dict[str, Trained], tmp_path: Path) -> Callable[..., str]:
    """Runs the tool with the toy model of a library; it paints to `tmp_path / 'out'`."""
    return lambda scope, image, *args: run_tool(TOOL, image, *trained[scope], '--out-dir', tmp_path / 'out',
                                                '--device', 'cpu', *args)


def read(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert('RGB'))


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_paints_every_image_of_a_folder_under_its_name(scope: str, run: Callable[..., str], images: Path,
                                                       tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(scope, images) == ''
    out = capsys.readouterr().out
    assert 'Painting' in out and f"3 of 3 images painted in {tmp_path / 'out'}" in out
    painted = {path.name: read(path) for path in (tmp_path / 'out').iterdir()}
    assert {name: image.shape for name, image in painted.items()} == {
        f'{path.name}.png': read(path).shape for path in images.iterdir()}
    assert not np.array_equal(painted['a.jpg.png'], painted['a.png.png'])
    if scope == 'mmseg':  # every pixel is painted over
        assert not np.array_equal(painted['b.JPG.png'], read(images / 'b.JPG'))


def test_colours_are_those_of_the_image(run: Callable[..., str], images: Path, tmp_path: Path) -> None:
    # After two iterations no box is sure enough to be painted.
    assert run('mmdet', images / 'a.png') == ''
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['a.png.png']
    assert not is_painted(read(tmp_path / 'out/a.png.png'), read(images / 'a.png')).any()


def test_labels_and_threshold_reach_the_painter(run: Callable[..., str], images: Path, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def paint(inferencer: object, path: Path, labels: bool, score_thr: float) -> np.ndarray:
        calls.append((labels, score_thr))
        return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setattr('inferencing.paint', paint)
    assert run('mmdet', images / 'a.png') == run('mmdet', images / 'a.png', '--no-labels', '--score-thr', 0) == ''
    assert calls == [(True, 0.3), (False, 0)]
    assert run('mmseg', images, '--score-thr', 0.5).startswith('error: --score-thr is for detectors, but config')


def test_names_images_that_it_cannot_read_or_that_lose_bits(run: Callable[..., str], images: Path, tmp_path: Path,
                                                            capsys: pytest.CaptureFixture) -> None:
    (images / 'a.jpeg').write_bytes(b'')
    (images / 'c.png').write_text('no image')
    for name in ('d.png', 'e.TIF'):
        cv2.imwrite(str(images / name), np.full((32, 32), 4080, np.uint16))
    message = run('mmseg', images)
    assert message == 'error: 2 of 7 images cannot be read (a.jpeg, c.png): repair or remove them.'
    out = capsys.readouterr().out.replace('\n', '')
    assert f'image {images}/a.jpeg cannot be read' in out and '5 of 7 images painted' in out
    assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == [
        'a.jpg.png', 'a.png.png', 'b.JPG.png', 'd.png.png', 'e.TIF.png']
    assert out.count('warning: ') == out.count('has 16 bits per channel, but is read as 8 bits') == 1  # of the first
    assert f'{images}/d.png has 16 bits' in out


def test_what_a_user_gets_wrong_is_one_sentence(run: Callable[..., str], run_tool: Callable[..., str], images: Path,
                                                tmp_path: Path, trained: dict[str, Trained]) -> None:
    assert run('mmseg', images, '--out-dir', images) == (
        f'error: --out-dir {images} is the folder of the images: choose another.')
    (tmp_path / 'empty').mkdir()
    assert run('mmseg', tmp_path / 'empty').startswith(f"error: folder {tmp_path / 'empty'} has no image")
    assert run('mmseg', 'no.jpg') == 'error: no.jpg does not exist: pass an image, or a folder of images.'
    other = trained['mmdet'].checkpoint
    assert run_tool(TOOL, images, trained['mmseg'].config, other, '--out-dir', tmp_path / 'out').startswith(
        f'error: checkpoint {other} does not fit the model of the config')
    assert not (tmp_path / 'out').exists()
