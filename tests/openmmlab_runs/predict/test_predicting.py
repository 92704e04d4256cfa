import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.infer import BaseInferencer
from mmengine.structures import InstanceData
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from torch import nn

from openmmlab_runs.checkpoints.reading import read_checkpoint
from openmmlab_runs.engine import load_config
from openmmlab_runs.errors import UserError
from openmmlab_runs.pictures.images import is_turned, read_image
from openmmlab_runs.pictures.painting import paint_boxes
from openmmlab_runs.pictures.prediction import Prediction, to_coco
from openmmlab_runs.predict.predicting import build_inferencer, infer, predict
from openmmlab_runs.predict.sources import images_of, pages_of
from openmmlab_runs.texts import printable
from tests.conftest import ROOT, Models, refusal
from tests.pictures import MOVED, is_painted, random_image
from tests.tools.conftest import Exploit


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
@pytest.mark.parametrize('is_known', [True, False])
def test_names_are_those_of_the_checkpoint_or_else_of_the_config(is_known: bool, scope: str, trained: Models,
                                                                 image: Path, tmp_path: Path) -> None:
    config, checkpoint = trained[scope]
    cfg = load_config(config)
    known, names = dict(cfg.test_dataloader.dataset.metainfo), list(cfg.test_dataloader.dataset.metainfo.classes)
    meta = dict(dataset_meta=dict(known, classes=names[::-1])) if is_known else {}
    torch.save(dict(state_dict=read_checkpoint(checkpoint)['state_dict'], meta=meta), tmp_path / 'a.pth')
    found, = infer(build_inferencer(cfg, tmp_path / 'a.pth', 'cpu'), image)
    assert list(found.classes) == (names[::-1] if is_known else names)


def test_a_checkpoint_that_does_not_fit_or_holds_code_and_a_device_that_is_not_there_are_refused(
        trained: Models, tmp_path: Path) -> None:
    content, path = read_checkpoint(trained['mmseg'].checkpoint), tmp_path / 'part.pth'
    for change, words in ((lambda: content.update(extra=Exploit()), 'part.pth is damaged, or contains code'),
                          (lambda: content.pop('extra') and content['state_dict'].popitem(), ': 1 missing')):
        change()
        torch.save(content, path)
        assert words in refusal(build_inferencer, load_config(trained['mmseg'].config), path, 'cpu')
    assert not Path('hacked').exists()
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
    found, = infer(detector, tmp_path / 'a.png')
    painted, colour = found.plot(), found.palette[0]
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
    assert not is_painted(found.plot(labels=False), pixels)[inside].any()
    assert not is_painted(found.plot(0.9), pixels).any()


@pytest.mark.parametrize('side, labels, expected', [(100, True, False), (200, True, True), (200, False, False)])
def test_a_segmentor_writes_labels_that_are_legible(side: int, labels: bool, expected: bool,
                                                    trained: Models, tmp_path: Path) -> None:
    inferencer = build_inferencer(load_config(trained['mmseg'].config), trained['mmseg'].checkpoint, 'cpu')
    random_image(tmp_path / 'a.png', side, side + 1)
    found, = infer(inferencer, tmp_path / 'a.png')
    with patch('matplotlib.axes.Axes.text') as text:
        assert found.plot(labels=labels).shape == (side, side + 1, 3)
    assert text.called is expected


@pytest.mark.slow
@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_predicts_paths_and_arrays_of_any_size_alike(scope: str, trained: Models, image: Path, tmp_path: Path) -> None:
    pixels = read_image(image)
    small = random_image(tmp_path / 'small.png', 70, 51)
    images = [pixels, image, small, str(image)]
    alone = [predict(one, *trained[scope], device='cpu')[0] for one in images]
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


def test_a_prediction_is_in_pixels_of_the_image_after_rotation(detector: BaseInferencer, image: Path, tmp_path: Path
                                                               ) -> None:
    [found] = infer(detector, [image])
    assert found.boxes.tolist() == [[10, 10, 90, 50]] and found.labels.tolist() == [0]
    assert found.scores.tolist() == [pytest.approx(0.9)] and found.masks is found.label_map is None
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = [tmp_path / f'turned.{suffix}' for suffix in ('jpg', 'png', 'tif', 'webp')]
    for path in turned:
        Image.new('RGB', (60, 40)).save(path, exif=exif)
    # OpenCV turns WebP from release 5 on.
    sizes = [(40, 60) if path.suffix == '.webp' and not is_turned('WEBP') else (60, 40) for path in turned]
    assert [read_image(path).shape[:2] for path in turned] == sizes
    Image.new('RGB', (60, 40)).save(tmp_path / 'a.png')
    content = (tmp_path / 'a.png').read_bytes()
    (tmp_path / 'cut.png').write_bytes(content[:50])
    assert 'cut.png cannot be read: it is damaged' in refusal(list, infer(detector, [tmp_path / 'cut.png']))
    assert [one.size for one in infer(detector, [*turned, tmp_path / 'a.png'])] == [*sizes, (40, 60)]


def test_an_image_that_cannot_be_predicted_is_one_sentence(detector: BaseInferencer, tmp_path: Path) -> None:
    told = refusal(infer, detector, [np.zeros((8, 8), np.uint8)])
    assert told == 'an image has shape (8, 8) and type uint8, but must be (H, W, 3), RGB, uint8: convert it.'
    for empty in (np.zeros((0, 8, 3), np.uint8), Image.new('RGB', (8, 0)), torch.zeros(3, 0, 8)):
        assert refusal(lambda empty=empty: list(infer(detector, [empty]))) == (
            'an image has shape (0, 8, 3), and so no pixels: leave it out.')
    assert 'no.png does not exist: pass an image' in refusal(infer, detector, [tmp_path / 'no.png'])
    told = refusal(list, infer(detector, [np.zeros((1, 9999, 3), np.uint8)]))
    assert told.startswith('image of 1 x 9999 pixels (height x width) cannot be predicted (')


@pytest.fixture
def nuclei() -> BaseInferencer:
    return build_inferencer(load_config(ROOT / 'demo/nuclei/config.py'), ROOT / 'demo/nuclei/model.safetensors', 'cpu')


def test_images_of_several_sizes_are_one_batch_and_have_the_boxes_that_they_have_alone(
        nuclei: BaseInferencer, monkeypatch: pytest.MonkeyPatch) -> None:
    image = read_image(ROOT / 'demo/nuclei/example.png')
    images = [image[:96, :128], image[:128, :96], image[100:196, 100:196]]
    alone, calls = [*infer(nuclei, images)], []
    forward = nuclei.forward
    monkeypatch.setattr(nuclei, 'forward', lambda data: calls.append(len(data['inputs'])) or forward(data))
    for one, other in zip(infer(nuclei, images, batch_size=3), alone, strict=True):
        assert len(one.boxes) == len(other.boxes) > 0 and one.masks == other.masks
        np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-2)
    assert calls == [3]


OBJECTS = Prediction((40, 60), ('cat', 'dog'), np.float32([[10, 5, 30, 15], [1, 2, 9, 9], [2, 2, 40, 30]]),
                     np.array([1, 0, 1]), np.float32([0.9, 0.4, 0.35]), name='a.png')


def test_thresholds_are_a_number_or_by_class() -> None:
    cases = (0.3, [0, 1, 2]), (0.4, [0]), ({'dog': 0.5}, [0, 1]), ({'cat': 0.8}, [0, 2]), ({}, [0, 1, 2]), (
        {'cat': 0.3, '': 0.95}, [1])
    for score_thr, kept in cases:
        found = OBJECTS.above(score_thr)
        assert np.array_equal(found.boxes, OBJECTS.boxes[kept]) and np.array_equal(found.labels, OBJECTS.labels[kept])
    assert refusal(OBJECTS.above, {'dogs': 0.5}) == (
        'score_thr has a score for dogs, which is no class of the model: did you mean dog: name one of its classes, or '
        'give a number.')


def test_a_prediction_plots_saves_and_converts_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = random_image(tmp_path / 'a.png', 40, 60)
    found = replace(OBJECTS, image=tmp_path / 'a.png')
    assert is_painted(found.plot(), pixels).any() and not is_painted(found.plot(0.9), pixels).any()
    found.save(tmp_path / 'out.png')
    assert np.array_equal(read_image(tmp_path / 'out.png'), found.plot())
    assert 'out.gif ends in neither .png nor .jpg' in refusal(found.save, tmp_path / 'out.gif')
    assert found.to_coco() == to_coco({'a.png': found})
    monkeypatch.setitem(sys.modules, 'supervision', None)
    assert refusal(found.to_supervision) == (
        'Prediction.to_supervision needs a package that is not installed: pip install supervision.')
    assert 'a label map' in refusal(Prediction((2, 2), ('a',), label_map=np.zeros((2, 2))).to_supervision)


def test_a_mask_is_painted_where_it_is() -> None:
    image = np.full((40, 60, 3), 255, np.uint8)
    for cells in (np.zeros((40, 60), bool), np.arange(40 * 60).reshape(40, 60) % 7 < 3, np.ones((40, 60), bool)):
        rle = coco_mask.encode(np.asfortranarray(cells, np.uint8))
        rle['counts'] = rle['counts'].decode()
        painted = paint_boxes(image, OBJECTS.boxes[:1] * 0, np.array([0]), masks=[rle], palette=[(0, 0, 0)])
        assert np.array_equal((painted < 255).any(axis=2)[4:, 4:], cells[4:, 4:])  # beside the box


def test_supervision_has_boxes_masks_and_names() -> None:
    supervision = pytest.importorskip('supervision')
    mask = np.zeros((40, 60, 3), np.uint8, order='F')
    mask[5:15, 10:30] = 1
    found = replace(OBJECTS, masks=coco_mask.encode(mask)).to_supervision()
    assert isinstance(found, supervision.Detections) and np.array_equal(found.xyxy, OBJECTS.boxes)
    assert [*found.data['class_name']] == ['dog', 'cat', 'dog'] and np.array_equal(found.mask[2], mask[..., 2])
    assert len(OBJECTS.above(1).to_supervision()) == 0


def test_a_stream_reads_only_what_is_asked_for(trained: Models, image: Path) -> None:
    read = []
    stream = predict((read.append(1) or image for _ in range(9)), *trained['mmdet'], 'cpu', stream=True)
    assert next(stream).name == 'image.png' and len(read) == 1
    assert refusal(predict, 0, *trained['mmdet']) == 'the images of camera 0 do not end: pass stream=True.'


def test_predictions_are_results_of_coco(tmp_path: Path) -> None:
    mask = np.zeros((40, 60), np.uint8, order='F')
    mask[5:15, 10:30] = 1
    rle = coco_mask.encode(mask)
    rle['counts'] = rle['counts'].decode()
    boxes, scores = np.float32([[10, 5, 30, 15.123]]), np.float32([0.9])
    classes, label = ('cat', 'dog'), np.array([1])
    nothing = Prediction((8, 9), classes, *np.zeros((3, 0)))
    file = tmp_path / 'predictions.json'
    plain = Prediction((40, 60), classes, boxes, label, scores)
    file.write_text(json.dumps(to_coco({'a.png': nothing, 'b.png': replace(plain, masks=[rle]), 'c.png': plain})))
    coco = COCO(file)
    assert {image['id']: image['file_name'] for image in coco.loadImgs(coco.getImgIds())} == {
        1: 'a.png', 2: 'b.png', 3: 'c.png'}
    results = coco.loadRes(coco.dataset['annotations'])
    assert not results.getAnnIds(imgIds=[1])
    with_mask, without = results.loadAnns(results.getAnnIds())
    assert coco.cats[with_mask['category_id']]['name'] == 'dog' and with_mask['score'] == 0.9
    assert np.array_equal(results.annToMask(with_mask), mask)
    assert (without['bbox'], without['image_id']) == ([10, 5, 20, 10.12], 3)


@pytest.mark.slow
def test_threads_predict_with_two_libraries_at_once(trained: Models, image: Path) -> None:
    """mmengine's registries have one scope for the process."""
    scopes = ['mmdet', 'mmseg'] * 4
    alone = {scope: predict(image, *trained[scope], 'cpu')[0] for scope in trained}
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda scope: predict([image, image], *trained[scope], 'cpu'), scopes)
        for scope, predictions in zip(scopes, found, strict=True):
            for one in predictions:
                for name in ('boxes', 'labels', 'scores', 'label_map'):
                    np.testing.assert_array_equal(getattr(one, name), getattr(alone[scope], name))


def test_what_is_suspended_keeps_no_other_thread_waiting(trained: Models, image: Path) -> None:
    config, checkpoint = trained['mmdet']
    running = infer(build_inferencer(load_config(config), checkpoint, 'cpu'), [image] * 3)
    next(running)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(predict, image, *trained['mmseg'], 'cpu').result(timeout=100)[0].label_map is not None
    assert len(list(running)) == 2


PIXELS = np.zeros((8, 9, 3), np.uint8)
JUNK = st.one_of(
    st.none(), st.booleans(), st.floats(), st.complex_numbers(), st.binary(max_size=9), st.text(max_size=9),
    st.integers(max_value=-1), st.integers(min_value=50), st.dates(), st.dictionaries(st.text(), st.integers()),
    st.sampled_from([
        '', 'a\0.png', '*\0', 'x' * 5000, '[', '**', Path(), Path('no.png'), object(), type, np.float64('nan'), ...,
        *(PIXELS.astype(kind) for kind in ('bool', 'complex', 'object', 'float16', 'datetime64[s]', 'U3', 'V4', '>i2')),
        np.array(1), np.zeros((0, 3, 3), np.uint8), PIXELS[0], PIXELS[None], PIXELS[::2, ::-1],
        np.ma.array(PIXELS, mask=True), np.zeros((8, 9, 3), [('a', 'u1')]),
        *(Image.new(mode, (9, 8)) for mode in ('1', 'F', 'LAB', 'I;16')),
        Image.new('RGB', (0, 8)), torch.zeros(3, 8, 9, device='meta'), torch.tensor(1.),
        torch.zeros(3, 8, 9).to_sparse(), torch.quantize_per_tensor(torch.zeros(3, 8, 9), 1., 0, torch.quint8),
        torch.nested.nested_tensor([torch.zeros(3, 8, 9)]), torch.zeros(3, 8, 9, requires_grad=True),
        torch.zeros(3, 8, 9, dtype=torch.complex64), torch.zeros(3, 8, 9, dtype=torch.complex64).conj().imag,
        torch.zeros(3, 8, 9, dtype=torch.bfloat16), torch.zeros(3, 8, 9, dtype=torch.float8_e4m3fn),
        torch.full((3, 8, 9), torch.nan), torch.zeros(3, 8, 9, dtype=torch.bool), torch.zeros(3, 9, 8).transpose(1, 2),
        torch.zeros(1, 3, 0, 9), nn.Parameter(torch.zeros(3, 8, 9))]))


@settings(deadline=None, max_examples=300)
@given(st.recursive(JUNK, lambda inner: st.lists(inner, max_size=3), max_leaves=3), st.booleans())
def test_any_source_is_images_or_one_sentence(source: object, as_rgb: bool) -> None:
    try:
        found = [page for named in islice(images_of(source, False, as_rgb), 3) for page in pages_of(named, as_rgb)]
    except UserError as error:
        assert '\n' not in printable(error) and len(str(error)) < 10_000
    else:
        for _, image in found:
            if isinstance(image, np.ndarray):
                assert image.ndim == 3 and image.size and image.dtype.kind in 'uif'
                assert not as_rgb or (image.dtype == np.uint8 and image.shape[2] == 3)


def test_a_list_that_has_itself_is_one_sentence() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert refusal(images_of, endless).startswith('a list of images has too many levels, or itself')


@pytest.mark.parametrize('options, told', [
    (dict(batch_size=0), 'batch_size is 0, but must be a number of at least 1: correct it.'),
    (dict(tile=0), 'tile is 0, but'), (dict(tile=8, overlap=8), 'overlap is 8, but must be a number from 0 to 7'),
    (dict(overlap=8), 'overlap is 8, but there are no tiles: give the side of a tile, too.'),
    (dict(tile=8, tile_scale=0.), 'tile_scale is 0.0, but'), (dict(score_thr=np.nan), 'score_thr is nan, but'),
    (dict(score_thr=dict(ball=-1)), 'score_thr of ball is -1, but'), (dict(images='no.png'), 'no.png does not exist')])
def test_what_would_go_wrong_in_silence_is_refused_before_the_model_is_built(
        options: dict[str, Any], told: str, trained: Models, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('openmmlab_runs.predict.predicting.open_checkpoint', None)
    config, checkpoint = trained['mmdet']
    assert told in refusal(predict, **{**dict(images=image, config=config, checkpoint=checkpoint), **options})


def test_a_prediction_refuses_what_it_cannot_paint_or_write(tmp_path: Path) -> None:
    found = replace(OBJECTS, image=np.zeros((40, 60, 3), np.uint8))
    for score_thr in (np.nan, -0.1, {'dog': 2}):
        assert 'must be a number from 0 to 1' in refusal(found.plot, score_thr)
    assert 'a.png is not known: predict() sets it' in refusal(OBJECTS.plot)
    assert f'folder {tmp_path}/no does not exist' in refusal(found.save, tmp_path / 'no/a.png')
