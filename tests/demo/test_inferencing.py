import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.infer import BaseInferencer
from mmengine.logging import HistoryBuffer
from mmengine.structures import InstanceData
from PIL import Image

from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from cpvt_mm.weights.reading import read_checkpoint
from inferencing import build_inferencer, paint
from tests.conftest import ROOT, Trained
from tests.demo.conftest import random_image
from tests.pictures import MOVED, is_painted


class Exploit:

    def __reduce__(self) -> tuple:
        return os.mkdir, ('hacked',)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_has_all_weights_of_a_checkpoint_of_plain_mmengine(scope: str, trained: dict[str, Trained], tmp_path: Path
                                                           ) -> None:
    config, checkpoint = trained[scope]
    content, path = read_checkpoint(checkpoint), tmp_path / 'plain.pth'
    torch.save(dict(content, message_hub=dict(log_scalars=dict(loss=HistoryBuffer([1.], [1])))), path)
    model = build_inferencer(load_config(config), path, 'cpu').model
    saved = content['state_dict']
    torch.testing.assert_close(dict(model.state_dict()), dict(saved), rtol=0, atol=0)
    assert not model.training


@pytest.mark.parametrize('change, message', [
    (lambda content: content['state_dict'].popitem(), r'part\.pth does not fit the model .*1 missing'),
    (lambda content: content.update(extra=Exploit()), r'part\.pth is damaged, or contains code'),
])
def test_a_checkpoint_that_does_not_fit_or_holds_code_is_refused(
        change: object, message: str, trained: dict[str, Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
        ) -> None:
    monkeypatch.chdir(tmp_path)
    config, checkpoint = trained['mmseg']
    content = read_checkpoint(checkpoint)
    change(content)
    torch.save(content, 'part.pth')
    with pytest.raises(UserError, match=message):
        build_inferencer(load_config(config), 'part.pth', 'cpu')
    assert not Path('hacked').exists()


@pytest.mark.parametrize('device', ['tpu', 'cuda:99'])
def test_a_device_that_is_not_there_is_named(device: str, trained: dict[str, Trained]) -> None:
    config, checkpoint = trained['mmseg']
    with pytest.raises(UserError, match=f"device '{device}' cannot be used"):
        build_inferencer(load_config(config), checkpoint, device)


def test_classifiers_have_no_inferencer_here() -> None:
    cfg = load_config(ROOT / 'configs/cpvt/cpvt-ti_16xb64_in1k.py')
    with pytest.raises(UserError, match='is for mmpretrain, but only predictions of mmdet and mmseg can be'):
        build_inferencer(cfg, 'x.pth')


@pytest.fixture
def detector(trained: dict[str, Trained], monkeypatch: pytest.MonkeyPatch) -> BaseInferencer:
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
                                                    trained: dict[str, Trained], tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    config, checkpoint = trained['mmseg']
    inferencer, texts = build_inferencer(load_config(config), checkpoint, 'cpu'), []
    put_text = cv2.putText
    monkeypatch.setattr('cv2.putText', lambda *args: texts.append(args[1]) or put_text(*args))
    random_image(tmp_path / 'a.png', side, side + 1)
    assert paint(inferencer, tmp_path / 'a.png', labels).shape == (side, side + 1, 3)
    assert bool(texts) is expected
