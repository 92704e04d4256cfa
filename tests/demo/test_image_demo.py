import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from openmmlab_tools.engine import load_config
from openmmlab_tools.predict.predicting import predict
from tests.backbones import UPERNET
from tests.helpers import ROOT, Models
from tests.openmmlab_tools.predict.test_sources import write_video
from tests.pictures import is_painted, random_image
from tests.tools.conftest import Capture, Run

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
def test_paints_images_under_their_names(scope: str, run: Run, images: Path, out: Path, trained: Models,
                                         capsys: Capture) -> None:
    assert run(scope, images) == ''
    printed = capsys.readouterr().out
    # A file gets no bar of progress, and nothing of libraries.
    assert printed.replace('\n', ' ').startswith(
        'warning: image a.png is drawn as a.png.png, because another image has the same name. '
        f'Drew 3 of 3 images in {out}') and 'mmengine' not in printed
    pictures = {path.name: read(path) for path in out.glob('*.png')}
    files = {'a.jpg': 'a.png', 'a.png': 'a.png.png', 'b.JPG': 'b.png'}
    assert {name: image.shape for name, image in pictures.items()} == {
        files[path.name]: read(path).shape for path in images.iterdir()}
    assert not np.array_equal(pictures['a.png'], pictures['a.png.png'])
    if scope == 'mmseg':  # every pixel is painted over
        assert not np.array_equal(pictures['b.png'], read(images / 'b.JPG'))
        assert {path.name for path in (out / 'label_maps').iterdir()} == {*pictures}
        label_map, [actual] = Image.open(out / 'label_maps/a.png'), predict(images / 'a.jpg', *trained[scope], 'cpu')
        assert np.array_equal(label_map, actual.label_map)
        palette = load_config(trained[scope].config).test_dataloader.dataset.metainfo.palette
        assert label_map.getpalette()[:18] == np.ravel(palette).tolist()
    else:  # colours are those of the image: after two iterations no box is sure enough to be painted
        assert not is_painted(pictures['a.png.png'], read(images / 'a.png')).any()
        coco = COCO(out / 'predictions.json')
        assert [image['file_name'] for image in coco.dataset['images']] == ['a.jpg', 'a.png', 'b.JPG']
        assert all(found['score'] < 0.3 for found in coco.dataset['annotations']) and coco.dataset['annotations']


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_an_image_that_pillow_does_not_open_is_predicted_in_tiles(
        scope: str, run: Run, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    tifffile = pytest.importorskip('tifffile')
    pixels = np.random.default_rng(0).integers(0, 256, (120, 150, 3), np.uint8)
    tifffile.imwrite(tmp_path / 'large.tif', pixels, tile=(32, 32), photometric='rgb')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 1000)
    opened, kind = [], tifffile.TiffFile
    monkeypatch.setattr(tifffile, 'TiffFile', lambda path: opened.append(path) or kind(path))
    assert run(scope, tmp_path / 'large.tif', '--tile', 96, '--max-pixels', 5000) == ''
    assert opened == [tmp_path / 'large.tif']  # once
    assert 'note: the picture of large.tif shows one of 2 rows and columns' in capsys.readouterr().out
    monkeypatch.undo()
    assert read(out / 'large.png').shape == (60, 75, 3)
    if scope == 'mmseg':
        assert read(out / 'label_maps/large.png').shape == pixels.shape


def test_labels_and_threshold_reach_the_painter(run: Run, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr('openmmlab_tools.pictures.prediction.Prediction.plot', lambda found, *options: calls.append(
        options) or np.zeros((8, 8, 3), np.uint8))
    for options in ((), ('--no-labels', '--score-thr', 0), ('--score-thr', 0.5, '--score-thr', 'kite=0.25')):
        assert run('mmdet', images / 'a.png', *options) == ''
    assert calls == [({'': 0.3}, True), ({'': 0}, False), ({'': 0.5, 'kite': 0.25}, True)]
    assert run('mmdet', images, '--score-thr', 'kit=1') == (
        'error: score_thr contains kit, but the model has no such class: did you mean kite: name a class of the model, '
        'or pass a number.')


def painted(out: Path) -> list[str]:
    return sorted(path.relative_to(out).as_posix().removesuffix('.png') for path in out.rglob('*.png')
                  if 'label_maps' not in path.parts)


def test_each_image_of_a_pattern_and_each_page_has_a_name_of_its_own_in_the_folder(
        run: Run, images: Path, out: Path, capsys: Capture) -> None:
    """Results of another run are told."""
    for folder in ('below', 'label_maps'):
        (images / folder).mkdir()
        shutil.copy(images / 'a.png', images / folder)
    assert run('mmdet', f'{images}/**/a.*').startswith('error: 1 of 4 images are not drawn (label_maps/a.png)')
    named = [image['file_name'] for image in json.loads((out / 'predictions.json').read_text())['images']]
    assert sorted(named) == ['a.jpg', 'a.png', 'below/a.png']
    assert painted(out) == ['a', 'a.png', 'below/a']
    assert all((images / name).is_file() for name in named)
    first, second = (Image.open(images / name).convert('RGB') for name in ('a.png', 'b.JPG'))
    first.save(images / 'two.tif', save_all=True, append_images=[second])
    assert run('mmseg', images / 'two.tif') == run('mmseg', f'{images}/label_maps/../b.JPG') == ''
    assert len([*out.glob('two.tif_00000?.png')]) == len([*out.glob('label_maps/two.tif_00000?.png')]) == 2
    (images / 'a.png').write_bytes(b'no image')  # the old picture is no result of it
    assert '1 of 1 images are not drawn' in run('mmdet', images / 'a.png')
    assert json.loads((out / 'predictions.json').read_text())['images'] == []
    told = capsys.readouterr().out.replace('\n', ' ')
    assert 'Drew 2 of 2 images' in told
    for count, name in ((4, 'a.png'), (8, 'a.png')):
        assert f'warning: {out} also contains {count} files from other runs, such as {out}/{name}. Use a new' in told
    again, inside = f'{images}/**/b.*', images / 'painted'
    assert run('mmseg', again, '--out-dir', inside) == ''
    assert '(painted/b.png, painted/label_maps/b.png)' in run('mmseg', again, '--out-dir', inside)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_an_image_without_a_result_is_named_and_loses_no_other(scope: str, run: Run, images: Path, out: Path,
                                                               capsys: Capture) -> None:
    long, longest = f'{"c" * 231}.png', f'{"f" * 251}.png'
    for name in (long, longest, f'{"f" * 251}.jpg'):  # two are painted under one name, and then with both suffixes
        (images / name).write_bytes((images / 'a.png').read_bytes())
    (images / 'a.jpeg').write_bytes(b'')
    random_image(images / 'line.png', 1, 10000)
    random_image(images / 'large.png', 300, 400)
    for name in ('d.png', 'e.TIF'):
        cv2.imwrite(str(images / name), np.full((32, 32), 4080, np.uint16))
    assert run(scope, images, '--max-pixels', 100_000) == (
        f'error: 4 of 11 images are not drawn (a.jpeg, {longest}, large.png, line.png): repair, scale or remove them '
        '(pass --tile 1024 to predict large images in tiles, or a --max-pixels above 100000; without tiles, a '
        'segmentor needs 4 bytes for each class and pixel).')
    printed = capsys.readouterr().out.replace('\n', '')
    for told in ('a.jpeg cannot be read', 'large.png has 400 x 300 pixels (width x height), but at most 100000 are',
                 'line.png cannot be predicted (', f'{longest} cannot be written (File name too long)'):
        assert f'image {images}/{told}' in printed
    assert 'Drew 7 of 11 images' in printed
    # A warning of the first alone.
    assert printed.count('warning: /') == 1 == printed.count(f'{images}/d.png has 16 bits per channel, but is read as')
    assert painted(out) == ['a', 'a.png', 'b', 'c' * 231, 'd', 'e', 'f' * 251] and not [*out.rglob('*.tmp')]
    if scope == 'mmdet':
        written = json.loads((out / 'predictions.json').read_text())
        assert len(written['images']) == 8  # predicted, also if it is not painted
    else:
        assert len([*(out / 'label_maps').iterdir()]) == 7
        assert run(scope, images / 'large.png', '--max-pixels', 100_000, '--tile', 256) == ''
        assert read(out / 'large.png').shape == (150, 200, 3)  # every second row and column, of at most 100,000


def random_frames(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (count, 16, 32, 3), np.uint8)


def test_without_a_model_it_finds_nuclei(run_tool: Run, out: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
                                         ) -> None:
    assert run_tool(TOOL, ROOT / 'demo/nuclei/example.png', '--out-dir', out, '--device', 'cpu') == ''
    actual = json.loads((out / 'predictions.json').read_text())['annotations']
    assert sum(nucleus['score'] > 0.5 for nucleus in actual) in range(15, 30)  # there are 22
    assert run_tool(TOOL, out, 'config.py') == '2'
    assert capsys.readouterr().err.endswith(
        'config config.py has no checkpoint: pass a config and a checkpoint, or neither.\n')
    monkeypatch.setattr('openmmlab_tools.commands.predict.NUCLEI', out / 'no')  # as in a wheel
    assert run_tool(TOOL, out) == '2'
    assert capsys.readouterr().err.endswith('demo/nuclei is only in a clone: pass a config and a checkpoint.\n')


def test_a_video_that_breaks_off_is_told_and_others_are_painted(run: Run, out: Path, tmp_path: Path, capsys: Capture
                                                                ) -> None:
    write_video(tmp_path / 'b.avi', random_frames(3))
    write_video(tmp_path / 'a.avi', random_frames(20))
    content = (tmp_path / 'a.avi').read_bytes()
    (tmp_path / 'a.avi').write_bytes(content[:len(content) // 2])
    assert run('mmseg', tmp_path / '*.avi').endswith(
        'images are not drawn (a.avi): repair, scale or remove them.')
    painted = {path.name[:5] for path in out.glob('*.png')}
    assert painted == {'a.avi', 'b.avi'} and len([*out.glob('b.avi_*.png')]) == 3
    assert 'a.avi has 20 frames, but ' in capsys.readouterr().out


@pytest.mark.parametrize('options, told', [
    (['a.png', '--score-thr', 'nan'], 'score_thr is nan, but must be a number from 0 to 1: correct it.'),
    (['a.png', '--score-thr', 'cat=-1'], 'score_thr of cat is -1.0, but must be a number from 0 to 1: correct'),
    (['a.png', str(UPERNET), 'a.pth', '--score-thr', '0.5'], '--score-thr is for detectors, but config'),
    (['a.png', '--max-pixels', '-3'], 'max_pixels is -3, but must be a whole number of at least 1: correct'),
    (['a.png', '--tile', '0'], 'tile is 0, but must be a whole number of at least 1: correct'),
    (['.', '--out-dir', '.'], '--out-dir . is the folder of the images: choose another.'),
    (['empty'], 'folder empty has no image'), (['7'], 'camera7 contains no readable image'),
    (['no.jpg'], 'no.jpg does not exist: pass an image, a folder of images, a pattern or a video.'),
    (['http://127.0.0.1:1/a.png'], 'http://127.0.0.1:1/a.png is an address, but images are only downloaded')])
def test_options_are_checked_before_the_model_is_built(options: list[str], told: str, run_tool: Run, image: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('openmmlab_tools.predict.predicting.build_inferencer', None)
    monkeypatch.chdir(image.parent)
    image.rename('a.png')
    Path('empty').mkdir()
    assert run_tool(TOOL, *options).startswith(f'error: {told}')
    assert {*Path().iterdir()} == {Path('a.png'), Path('empty')}
