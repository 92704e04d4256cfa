import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from openmmlab_runs.engine import load_config
from openmmlab_runs.predict.predicting import predict
from tests.conftest import ROOT, Models
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
    assert 'Painting' in printed and f'3 of 3 images painted in {out}' in printed
    painted = {path.name: read(path) for path in out.glob('*.png')}
    assert {name: image.shape for name, image in painted.items()} == {
        f'{path.name}.png': read(path).shape for path in images.iterdir()}
    assert not np.array_equal(painted['a.jpg.png'], painted['a.png.png'])
    if scope == 'mmseg':  # every pixel is painted over
        assert not np.array_equal(painted['b.JPG.png'], read(images / 'b.JPG'))
        assert {path.name for path in (out / 'label_maps').iterdir()} == {*painted}
        label_map, [found] = Image.open(out / 'label_maps/a.jpg.png'), predict(images / 'a.jpg', *trained[scope], 'cpu')
        assert np.array_equal(label_map, found.label_map)
        palette = load_config(trained[scope].config).test_dataloader.dataset.metainfo.palette
        assert label_map.getpalette()[:18] == np.ravel(palette).tolist()
    else:  # colours are those of the image: after two iterations no box is sure enough to be painted
        assert not is_painted(painted['a.png.png'], read(images / 'a.png')).any()
        coco = COCO(out / 'predictions.json')
        assert [image['file_name'] for image in coco.dataset['images']] == ['a.jpg', 'a.png', 'b.JPG']
        assert all(found['score'] < 0.3 for found in coco.dataset['annotations']) and coco.dataset['annotations']


def test_labels_and_threshold_reach_the_painter(run: Run, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr('openmmlab_runs.pictures.prediction.Prediction.plot', lambda found, *options: calls.append(
        options) or np.zeros((8, 8, 3), np.uint8))
    assert run('mmdet', images / 'a.png') == run('mmdet', images / 'a.png', '--no-labels', '--score-thr', 0) == ''
    assert calls == [({'': 0.3}, True), ({'': 0}, False)]
    assert run('mmdet', images / 'a.png', *('--score-thr', 0.5, '--score-thr', 'kite=0.25')) == ''
    assert calls[2][0] == {'': 0.5, 'kite': 0.25}
    assert run('mmdet', images, '--score-thr', 'kit=1') == (
        'error: score_thr has a score for kit, which is no class of the model: did you mean kite: name one of its '
        'classes, or give a number.')
    assert run('mmseg', images, '--score-thr', 0.5).startswith('error: --score-thr is for detectors, but config')


def test_each_image_of_a_pattern_and_each_page_has_a_name_of_its_own(run: Run, images: Path, out: Path, capsys: Capture
                                                                     ) -> None:
    (images / 'below').mkdir()
    shutil.copy(images / 'a.png', images / 'below')
    assert run('mmdet', f'{images}/**/a.*') == ''
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob('*.png')) == [
        'a.jpg.png', 'a.png.png', 'below/a.png.png']
    named = [image['file_name'] for image in json.loads((out / 'predictions.json').read_text())['images']]
    assert sorted(named) == ['a.jpg', 'a.png', 'below/a.png'] and all((images / name).is_file() for name in named)
    first, second = (Image.open(images / name).convert('RGB') for name in ('a.png', 'b.JPG'))
    first.save(images / 'two.tif', save_all=True, append_images=[second])
    assert run('mmseg', images / 'two.tif') == ''
    assert len([*out.glob('two.tif_00000?.png')]) == len([*out.glob('label_maps/two.tif_00000?.png')]) == 2
    told = capsys.readouterr().out.replace('\n', ' ')
    assert '2 of 2 images painted' in told
    assert f'warning: {out} also has 4 files that are not of this run, such as {out}/a.jpg.png: choose a new' in told
    assert 'is an address, and none is fetched unless you allow it' in run('mmdet', 'http://127.0.0.1:1/a.png')


def test_names_images_that_it_cannot_read_or_that_lose_bits(run: Run, images: Path, out: Path, capsys: Capture) -> None:
    (images / 'a.jpeg').write_bytes(b'')
    (images / 'c.png').write_text('no image')
    for name in ('d.png', 'e.TIF'):
        cv2.imwrite(str(images / name), np.full((32, 32), 4080, np.uint16))
    message = run('mmseg', images)
    assert message.startswith('error: 2 of 7 images are not painted (a.jpeg, c.png): repair, scale or remove them')
    printed = capsys.readouterr().out.replace('\n', '')
    assert f'image {images}/a.jpeg cannot be read' in printed and '5 of 7 images painted' in printed
    assert sorted(path.name for path in out.glob('*.png')) == [
        'a.jpg.png', 'a.png.png', 'b.JPG.png', 'd.png.png', 'e.TIF.png']
    # A warning of the first alone.
    assert printed.count('warning: ') == printed.count('has 16 bits per channel, but is read as 8 bits') == 1
    assert f'{images}/d.png has 16 bits' in printed


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_an_image_whose_result_cannot_be_written_loses_no_other(scope: str, run: Run, images: Path, out: Path,
                                                                capsys: Capture) -> None:
    long, longest = f'{"a" * 231}.png', f'{"b" * 251}.png'
    for name in (long, longest):
        (images / name).write_bytes((images / 'a.png').read_bytes())
    message = run(scope, images)
    assert message.startswith(f'error: 1 of 5 images are not painted ({longest}): ')
    assert f'what belongs to image {images}/{longest} cannot be written (File name too long)' in capsys.readouterr().out
    assert (out / f'{long}.png').is_file() and not [*out.rglob('*.tmp')]
    if scope == 'mmdet':
        written = json.loads((out / 'predictions.json').read_text())
        assert len(written['images']) == 5  # predicted, also if it is not painted
    else:
        assert len([*(out / 'label_maps').iterdir()]) == 4


def test_images_that_the_model_cannot_take_are_left_out(run: Run, images: Path, out: Path, capsys: Capture) -> None:
    random_image(images / 'line.png', 1, 10000)
    random_image(images / 'large.png', 300, 400)
    assert run('mmseg', images / 'large.png', '--max-pixels', 100_000, '--tile', 256) == ''
    assert read(out / 'large.png.png').shape == (300, 400, 3)
    shutil.rmtree(out)
    assert run('mmdet', images, '--max-pixels', 100_000) == (
        'error: 2 of 5 images are not painted (large.png, line.png): repair, scale or remove them '
        '(--tile 1024 predicts large ones in tiles; --max-pixels allows larger ones, for which a segmentor needs 4 '
        'bytes for each class at each pixel).')
    printed = capsys.readouterr().out.replace('\n', '')
    assert f'image {images}/large.png has 400 x 300 pixels (width x height), but at most 100000 are' in printed
    assert f'image {images}/line.png cannot be predicted (' in printed and '3 of 5 images painted' in printed
    assert sorted(path.name for path in out.glob('*.png')) == ['a.jpg.png', 'a.png.png', 'b.JPG.png']


def test_what_a_user_gets_wrong_is_one_sentence(run: Run, images: Path, out: Path, tmp_path: Path) -> None:
    assert run('mmseg', images, '--out-dir', images) == (
        f'error: --out-dir {images} is the folder of the images: choose another.')
    (tmp_path / 'empty').mkdir()
    assert run('mmseg', tmp_path / 'empty').startswith(f"error: folder {tmp_path / 'empty'} has no image")
    assert run('mmseg', 'no.jpg') == (
        'error: no.jpg does not exist: pass an image, a folder of images, a pattern or a video.')
    assert not out.exists()


def test_without_a_model_it_finds_nuclei(run_tool: Run, out: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
                                         ) -> None:
    assert run_tool(TOOL, ROOT / 'demo/nuclei/example.png', '--out-dir', out, '--device', 'cpu') == ''
    found = json.loads((out / 'predictions.json').read_text())['annotations']
    assert sum(nucleus['score'] > 0.5 for nucleus in found) in range(15, 30)  # there are 22
    assert run_tool(TOOL, out, 'config.py') == '2'
    assert capsys.readouterr().err.endswith('config config.py has no checkpoint: pass both, or none of them.\n')
    monkeypatch.setattr('cpvt_mm.commands.predict.NUCLEI', out / 'no')  # as in a wheel
    assert run_tool(TOOL, out) == '2'
    assert capsys.readouterr().err.endswith('demo/nuclei is only in a clone: pass a config and a checkpoint.\n')


def test_results_of_another_run_are_told_and_no_name_leaves_the_folder(run: Run, images: Path, out: Path,
                                                                       capsys: Capture) -> None:
    (images / 'label_maps').mkdir()
    shutil.copy(images / 'a.png', images / 'label_maps')
    assert run('mmseg', f'{images}/**/a.png').startswith('error: 1 of 2 images are not painted (label_maps/a.png)')
    assert np.array_equal(read(out / 'a.png.png').shape, read(images / 'a.png').shape)
    assert run('mmseg', f'{images}/label_maps/../b.JPG') == ''
    assert f'{out} also has 2 files that are not of this run' in capsys.readouterr().out.replace('\n', ' ')
    (images / 'a.png').write_bytes(b'no image')  # the old label map is no result of it
    assert '1 of 1 images are not painted' in run('mmdet', images / 'a.png')
    assert json.loads((out / 'predictions.json').read_text())['images'] == []
    assert f'{out} also has 4 files that are not of this run' in capsys.readouterr().out.replace('\n', ' ')
    again, inside = f'{images}/**/b.JPG*', images / 'painted'
    assert run('mmseg', again, '--out-dir', inside) == ''
    assert '(painted/b.JPG.png, painted/label_maps/b.JPG.png)' in run('mmseg', again, '--out-dir', inside)


@pytest.mark.parametrize('options, told', [
    (['a.png', '--score-thr', 'nan'], 'error: score_thr is nan, but must be a number from 0 to 1: correct it.'),
    (['a.png', '--score-thr', 'cat=-1'], 'error: score_thr of cat is -1.0, but must be a number from 0 to 1: correct'),
    (['a.png', '--max-pixels', '-3'], 'error: --max-pixels is -3, but must be a number of at least 1: correct'),
    (['a.png', '--tile', '0'], 'error: tile is 0, but must be a number of at least 1: correct'),
    (['7'], 'error: camera7 gives no image: check it')])
def test_options_are_checked_before_the_model_is_built(options: list[str], told: str, run_tool: Run, image: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('cpvt_mm.commands.predict.build_inferencer', None)
    monkeypatch.chdir(image.parent)
    image.rename('a.png')
    assert run_tool(TOOL, *options).startswith(told)
    assert [*Path().iterdir()] == [Path('a.png')]
