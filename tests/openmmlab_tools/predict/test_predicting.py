"""Predictions of any images, whole or in tiles, alone or in batches, and what is refused before them."""
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.engine import load_config
from openmmlab_tools.pictures.images import read_image
from openmmlab_tools.predict.predicting import build_inferencer, infer, predict
from tests.helpers import Models, refusal
from tests.pictures import random_image
from tests.tools.conftest import Exploit


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
@pytest.mark.parametrize('is_known', [True, False])
def test_names_are_those_of_the_checkpoint_or_else_of_the_config(is_known: bool, scope: str, trained: Models,
                                                                 image: Path, tmp_path: Path,
                                                                 recwarn: pytest.WarningsRecorder) -> None:
    config, checkpoint = trained[scope]
    cfg = load_config(config)
    known, names = dict(cfg.test_dataloader.dataset.metainfo), list(cfg.test_dataloader.dataset.metainfo.classes)
    meta = dict(dataset_meta=dict(known, classes=names[::-1])) if is_known else {}
    torch.save(dict(state_dict=read_checkpoint(checkpoint)['state_dict'], meta=meta), tmp_path / 'a.pth')
    actual, = infer(build_inferencer(cfg, tmp_path / 'a.pth', 'cpu'), image)
    assert list(actual.classes) == (names[::-1] if is_known else names)
    # The libraries would say that they use the classes of another data set.
    assert not [one for one in recwarn if 'by default' in str(one.message)]


def test_a_checkpoint_that_does_not_fit_or_holds_code_and_a_device_that_is_not_there_are_refused(
        trained: Models, tmp_path: Path) -> None:
    config, checkpoint = trained['mmseg']
    content, part, code = read_checkpoint(checkpoint), tmp_path / 'part.pth', tmp_path / 'code.pth'
    torch.save(dict(content, extra=Exploit()), code)
    content['state_dict'].popitem()
    torch.save(content, part)
    for path, device, words in ((code, 'cpu', 'code.pth is damaged, or contains code'), (part, 'cpu', ': 1 missing'),
                                (checkpoint, 'tpu', "device 'tpu' cannot be used"),
                                (checkpoint, 'cuda:99', "device 'cuda:99' cannot be used")):
        assert words in refusal(build_inferencer, load_config(config), path, device)
    assert not Path('hacked').exists()
    (tmp_path / 'classifier.py').write_text("default_scope = 'mmpretrain'\nmodel = dict(type='ImageClassifier')")
    told = refusal(build_inferencer, load_config(tmp_path / 'classifier.py'), 'x.pth')
    assert 'is for mmpretrain, but only predictions of mmdet and mmseg can be' in told


@pytest.mark.parametrize('options, told', [
    (dict(batch_size=0), 'batch_size is 0, but must be a whole number of at least 1: correct it.'),
    (dict(tile=0), 'tile is 0, but'), (dict(tile=8, overlap=8), 'overlap is 8, but must be a whole number from 0 to 7'),
    (dict(config=3), 'config is 3, but must be a path'), (dict(stream=1), 'stream is 1, but must be True or False'),
    (dict(overlap=8), 'overlap is 8, but there are no tiles: also pass the side of a tile.'),
    (dict(tile=8, tile_scale=0.), 'tile_scale is 0.0, but'), (dict(score_thr=np.nan), 'score_thr is nan, but'),
    (dict(score_thr=dict(ball=-1)), 'score_thr of ball is -1, but'), (dict(images='no.png'), 'no.png does not exist'),
    (dict(images=0), 'the images of camera 0 do not end: pass stream=True.')])
def test_what_would_go_wrong_in_silence_is_refused_before_the_model_is_built(
        options: dict[str, Any], told: str, trained: Models, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('openmmlab_tools.predict.predicting.open_weights', None)
    config, checkpoint = trained['mmdet']
    assert told in refusal(predict, **{**dict(images=image, config=config, checkpoint=checkpoint), **options})


@pytest.mark.slow
@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_predicts_paths_and_arrays_of_any_size_alike(scope: str, trained: Models, image: Path, tmp_path: Path) -> None:
    small = random_image(tmp_path / 'small.png', 70, 51)
    images = [read_image(image), image, small, str(image)]
    alone = [predict(image, *trained[scope], device='cpu')[0] for image in images]
    assert [one.size for one in alone] == [(100, 200), (100, 200), (70, 51), (100, 200)]
    for batch_size in (1, 2):
        for one, other in zip(predict(images, *trained[scope], 'cpu', batch_size), alone, strict=True):
            assert one.classes == other.classes and len(one.classes) > 1
            if scope == 'mmseg':
                assert one.label_map.shape == one.size and np.mean(one.label_map != other.label_map) < 0.01
            else:
                assert 0 < len(one.boxes) == len(one.labels) == len(one.masks)
                np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
    first, second = alone[:2]
    assert np.array_equal(first.label_map, second.label_map) and np.array_equal(first.boxes, second.boxes)


def test_sizes_are_those_after_rotation_and_what_cannot_be_predicted_is_one_sentence(
        trained: Models, tmp_path: Path) -> None:
    config, checkpoint = trained['mmdet']
    inferencer = build_inferencer(load_config(config), checkpoint, 'cpu')
    turned, cut = tmp_path / 'turned.jpg', tmp_path / 'cut.png'
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (60, 40)).save(turned, exif=exif)
    cut.write_bytes(turned.read_bytes()[:50])
    assert [one.size for one in infer(inferencer, [turned, np.zeros((40, 60, 3), np.uint8)])] == [(60, 40), (40, 60)]
    for source, words in ((cut, f'image {cut} cannot be read: it is damaged'), (
            np.zeros((1, 9999, 3), np.uint8), 'image of 1 x 9999 pixels (height x width) cannot be predicted (')):
        assert refusal(list, infer(inferencer, source)).startswith(words)


def test_a_stream_reads_only_what_is_asked_for(trained: Models, image: Path) -> None:
    read = []
    stream = predict((read.append(1) or image for _ in range(9)), *trained['mmdet'], 'cpu', stream=True)
    assert next(stream).name == 'image.png' and len(read) == 1


@pytest.mark.slow
def test_threads_predict_with_two_libraries_at_once(trained: Models, image: Path) -> None:
    """mmengine's registries have one scope for the process."""
    scopes = ['mmdet', 'mmseg'] * 4
    alone = {scope: predict(image, *trained[scope], 'cpu')[0] for scope in trained}
    with ThreadPoolExecutor(8) as pool:
        actual = pool.map(lambda scope: predict([image, image], *trained[scope], 'cpu'), scopes)
        for scope, predictions in zip(scopes, actual, strict=True):
            for prediction in predictions:
                for name in ('boxes', 'labels', 'scores', 'label_map'):
                    np.testing.assert_array_equal(getattr(prediction, name), getattr(alone[scope], name))


def test_what_is_suspended_keeps_no_other_thread_waiting(trained: Models, image: Path) -> None:
    config, checkpoint = trained['mmdet']
    running = infer(build_inferencer(load_config(config), checkpoint, 'cpu'), [image] * 3)
    next(running)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(predict, image, *trained['mmseg'], 'cpu').result(timeout=100)[0].label_map is not None
    assert len(list(running)) == 2


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
@pytest.mark.parametrize('options', [dict(tile=(16, 16)), dict(compression='zlib', rowsperstrip=5), {}])
def test_tiles_that_are_read_from_a_file_have_the_predictions_of_the_image(
        scope: str, options: dict[str, Any], trained: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile = pytest.importorskip('tifffile')
    pixels = random_image(tmp_path / 'a.png', 90, 70)
    tifffile.imwrite(tmp_path / 'a.tif', pixels, photometric='rgb', **options)
    config, checkpoint = trained[scope]
    inferencer = build_inferencer(load_config(config), checkpoint, 'cpu')
    expected, = infer(inferencer, pixels, tile=48, overlap=8, score_thr=0.)
    monkeypatch.setattr('openmmlab_tools.predict.predicting.read_image', lambda *_: pytest.fail('reads the whole file'))
    prediction, = infer(inferencer, tmp_path / 'a.tif', tile=48, overlap=8, score_thr=0.)
    for part in ('label_map', 'boxes', 'labels', 'scores'):
        np.testing.assert_array_equal(getattr(prediction, part), getattr(expected, part))
    assert prediction.size == pixels.shape[:2]
