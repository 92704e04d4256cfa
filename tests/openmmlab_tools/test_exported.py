"""Exported files in place of checkpoints: predictions, and files of another kind, which are told in a sentence."""
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement

from openmmlab_tools.exported import runtimes
from openmmlab_tools.exported.opening import open_weights
from openmmlab_tools.exported.runtimes import Loaded
from openmmlab_tools.registry import in_scope
from tests.helpers import refusal

TOLD = dict(mean='[0.0, 0.0, 0.0]', std='[1.0, 1.0, 1.0]', channels='RGB', classes='["a", "b"]')
BOXES = torch.tensor([[-3., 2, 8, 12, 0.9], [4, 4, 40, 10, 0.8], [30, 1, 35, 5, 0.7], [1, 1, 5, 5, 0.6]])
LABELS, IMAGES = torch.tensor([1, 0, 1, 0]), torch.tensor([0, 0, 0, 1])


def config(scope: str, **preprocessor: object) -> Config:
    return Config(dict(default_scope=scope, model=dict(type='X', data_preprocessor=dict(
        type='DetDataPreprocessor' if scope == 'mmdet' else 'SegDataPreProcessor', bgr_to_rgb=True, **preprocessor))))


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Returns a file of which a runtime returns outputs, with a description."""
    def give(told: dict[str, str] = TOLD, **outputs: Any) -> Path:
        loaded = Loaded(lambda image: [*outputs.values()], [*outputs], told)
        monkeypatch.setitem(runtimes.RUNTIMES, '.onnx', dict(torch=lambda path: loaded))
        (tmp_path / 'a.onnx').write_bytes(b'weights')
        return tmp_path / 'a.onnx'

    return give


def model_of(scope: str, file: Path) -> Any:
    from mmengine.registry import MODELS
    cfg = config(scope)
    opened = open_weights(cfg, file)
    with in_scope(scope):
        model = MODELS.build(cfg.model)
    assert opened.meta['dataset_meta']['classes'] == ['a', 'b']
    assert torch.equal(model.state_dict()['digest'], opened.state_dict['digest'])
    return model


@pytest.mark.parametrize('scope, outputs', [
    ('mmdet', dict(dets=BOXES, labels=LABELS, images=IMAGES)), ('mmseg', dict(output0=torch.zeros(1, 2, 8, 8)))])
def test_a_file_is_loaded_once_and_again_if_it_changes(
        scope: str, outputs: dict[str, torch.Tensor], given: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
        ) -> None:
    file = given(**outputs)
    load, paths = runtimes.RUNTIMES['.onnx']['torch'], []
    monkeypatch.setitem(runtimes.RUNTIMES, '.onnx', dict(torch=lambda path: paths.append(path) or load(path)))
    first = model_of(scope, file)
    assert paths == [file]
    file.write_bytes(b'other weights')
    second = model_of(scope, file)
    assert paths == [file] * 2 and not torch.equal(first.digest, second.digest)


def sample(kind: type[BaseDataElement], height: int, width: int, factor: float = 2.) -> Any:
    size = round(height / factor), round(width / factor)
    return kind(metainfo=dict(img_shape=(height, width), ori_shape=size, scale_factor=(factor, factor)))


def test_boxes_are_clipped_to_their_image_and_scaled_and_those_in_the_padding_go(given: Callable[..., Path]) -> None:
    from mmdet.structures import DetDataSample
    model = model_of('mmdet', given(dets=BOXES, labels=LABELS, images=IMAGES))
    samples = [sample(DetDataSample, 20, 24), sample(DetDataSample, 6, 6)]
    first, second = model.predict(torch.zeros(2, 3, 20, 36), samples)
    assert first.pred_instances.bboxes.tolist() == [[0, 1, 4, 6], [2, 2, 12, 5]]
    assert first.pred_instances.labels.tolist() == [1, 0] and not model.with_mask
    assert second.pred_instances.bboxes.tolist() == [[0.5, 0.5, 2.5, 2.5]]


def test_masks_are_pasted_as_mmdet_does(given: Callable[..., Path]) -> None:
    from mmdet.models.roi_heads.mask_heads import FCNMaskHead
    from mmdet.structures import DetDataSample
    from mmengine.config import ConfigDict
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(4, 7, 7, generator=generator)
    boxes = BOXES.clone()
    boxes[:, :4] = torch.rand(4, 2, 2, generator=generator).mul(15).cumsum(1).flatten(1)
    images = torch.zeros_like(IMAGES)
    model = model_of('mmdet', given(dets=boxes, labels=LABELS, images=images, masks=masks))
    one = sample(DetDataSample, 40, 44)
    actual, = model.predict(torch.zeros(1, 3, 40, 44), [one])
    head = FCNMaskHead(num_convs=1, num_classes=2)
    expected = head._predict_by_feat_single(
        torch.logit(masks)[:, None].repeat(1, 2, 1, 1), boxes[:, :4], LABELS, one.metainfo,
        ConfigDict(mask_thr_binary=0.5), rescale=True)
    assert model.with_mask and actual.pred_instances.masks.shape == (4, 20, 22)
    assert actual.pred_instances.masks.any((1, 2)).all()
    assert (actual.pred_instances.masks != expected).float().mean() < 1e-3  # rounding decides at the threshold


def test_label_maps_are_the_larger_logits_in_the_original_size(given: Callable[..., Path]) -> None:
    from mmseg.structures import SegDataSample
    logits = torch.zeros(1, 2, 8, 12)
    logits[:, 1, :, 6:] = 1.
    model = model_of('mmseg', given(output0=logits))
    actual, = model.predict(torch.zeros(1, 3, 8, 12), [sample(SegDataSample, 8, 12)])
    assert np.array_equal(actual.pred_sem_seg.data[0].numpy(), np.repeat([[0, 0, 0, 1, 1, 1]], 4, axis=0))


@pytest.mark.parametrize('scope, change, outputs, words', [
    ('mmseg', dict(mean=None), dict(output0=0), 'does not contain the normalization of its images: pass a file'),
    ('mmseg', dict(classes=None), dict(output0=0, output1=0), 'has no classes, so it is a backbone alone'),
    ('mmdet', {}, dict(output0=0), 'returns output0, but a model of mmdet must return dets, images, labels: pass'),
    ('mmseg', dict(mean='[1.0, 2.0, 3.0]'), dict(output0=0), 'with mean [1.0, 2.0, 3.0], but config None has [0.0, '),
    ('mmseg', dict(channels='BGR'), dict(output0=0), 'for images with channels BGR, but config None has RGB: pass'),
    ('mmseg', dict(mean='abc'), dict(output0=0), "whose mean is 'abc', but must be a list of numbers: export"),
    ('mmseg', dict(classes='{"a": 1}'), dict(output0=0), 'whose classes is \'{"a": 1}\', but must be a list of names'),
    ('mmseg', {}, dict(output0=torch.zeros(1, 3, 4, 4)), 'returns logits of 3 classes, but names 2: export the model'),
    ('mmpretrain', {}, dict(output0=0), 'is for mmpretrain, but exported files are models of mmdet or mmseg: pass')])
def test_a_file_of_another_kind_is_told(scope: str, change: dict[str, str | None], outputs: dict[str, int], words: str,
                                        given: Callable[..., Path]) -> None:
    told = {name: text for name, text in {**TOLD, **change}.items() if text is not None}
    assert words in refusal(open_weights, config(scope), given(told, **outputs))


def test_a_file_for_other_images_is_told_before_the_first_image(
        given: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(image: torch.Tensor) -> list[torch.Tensor]:
        assert image.shape[1:] == (3, 32, 32), 'Got: 40 Expected: 32'
        return []

    file = given()
    monkeypatch.setitem(runtimes.RUNTIMES, '.onnx', dict(torch=lambda path: Loaded(run, ['output0'], TOLD)))
    assert refusal(open_weights, config('mmseg'), file) == (
        f'{file} does not run on a float32 image of 3 channels and any size (AssertionError: Got: 40 Expected: 32): '
        'export the model again.')


def test_a_class_without_a_name_is_told(given: Callable[..., Path]) -> None:
    from mmdet.structures import DetDataSample
    model = model_of('mmdet', given(dets=BOXES, labels=LABELS + 1, images=IMAGES))
    told = refusal(model.predict, torch.zeros(1, 3, 20, 36), [sample(DetDataSample, 20, 24)])
    assert told.endswith('a.onnx finds class 2, but its last class has the number 1: export the model again.')


def test_a_missing_or_damaged_file_and_a_missing_runtime_are_told(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 'a.onnx does not exist: pass an exported file.' in refusal(
        open_weights, config('mmseg'), tmp_path / 'a.onnx')
    for suffix, names in runtimes.RUNTIMES.items():
        file = tmp_path / f'b{suffix}'
        file.write_bytes(json.dumps(TOLD).encode())
        for name, load in names.items():
            monkeypatch.setitem(runtimes.RUNTIMES, suffix, {name: load})
            assert f'{file} cannot be read by {name} (' in refusal(open_weights, config('mmseg'), file)
    monkeypatch.setitem(runtimes.RUNTIMES, '.onnx', dict(no_runtime=None, nor_this=None))
    assert '.onnx files need no_runtime or nor_this, but none is installed: pip install no_runtime.' in refusal(
        open_weights, config('mmseg'), tmp_path / 'b.onnx')


def test_a_runtime_that_lacks_an_operator_is_left_out_and_told(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[tuple[str, str]]) -> None:
    def fail(path: Path) -> Loaded:
        raise RuntimeError('in core.cpp\n- Unsupported padding mode: [wrap].\n')

    both = dict(json=lambda path: Loaded(lambda image: [image], [], {}), ast=fail)  # modules that are there
    monkeypatch.setitem(runtimes.RUNTIMES, '.onnx', both)
    assert [*runtimes.load_everywhere(tmp_path / 'a.tmp', '.onnx')] == ['json']
    assert log == [('INFO', 'note: ast cannot run the exported file (Unsupported padding mode: [wrap]), so it is not '
                            'compared there: use json.')]
    monkeypatch.setitem(runtimes.RUNTIMES, '.onnx', dict(ast=fail))
    assert refusal(runtimes.load_everywhere, tmp_path / 'a.tmp', '.onnx') == (
        'ast cannot run the exported file (Unsupported padding mode: [wrap]): nothing is written.')
