import os
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.structures import InstanceData
from PIL import Image

from cpvt_mm.checkpoints.reading import read_checkpoint
from cpvt_mm.engine import load_config
from cpvt_mm.engine.inferencing import build_inferencer, paint
from cpvt_mm.errors import UserError
from tests.conftest import ROOT, Trained


class Exploit:

    def __reduce__(self) -> tuple:
        return os.mkdir, ('hacked',)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_has_all_weights_of_the_checkpoint(scope: str, trained: dict[str, Trained]) -> None:
    config, checkpoint = trained[scope]
    model = build_inferencer(load_config(config), checkpoint, 'cpu').model
    saved = read_checkpoint(checkpoint)['state_dict']
    torch.testing.assert_close(dict(model.state_dict()), dict(saved), rtol=0, atol=0)
    assert not model.training


@pytest.mark.parametrize('change, message', [
    (lambda content: content['state_dict'].popitem(), r'part\.pth does not fit the model .*1 missing'),
    (lambda content: content.update(extra=Exploit()), r'part\.pth is damaged, or holds code'),
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
    with pytest.raises(UserError, match='is for mmpretrain, but only predictions of mmdet and mmseg are painted here'):
        build_inferencer(cfg, 'x.pth')


def test_paints_the_boxes_that_are_predicted_and_nothing_else(trained: dict[str, Trained], tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (120, 160, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / 'a.png')
    config, checkpoint = trained['mmdet']
    inferencer = build_inferencer(load_config(config), checkpoint, 'cpu')
    assert np.array_equal(paint(inferencer, tmp_path / 'a.png'), pixels)  # after two iterations no box is sure enough
    forward = inferencer.forward

    def find(data: object) -> object:
        samples = forward(data)
        samples[0].pred_instances = InstanceData(
            bboxes=torch.tensor([[10., 10, 90, 50]]), labels=torch.tensor([0]), scores=torch.tensor([0.9]))
        return samples

    monkeypatch.setattr(inferencer, 'forward', find)
    painted = paint(inferencer, tmp_path / 'a.png')
    assert not np.array_equal(painted[:60, :100], pixels[:60, :100])
    assert np.array_equal(painted[60:], pixels[60:]) and np.array_equal(painted[:, 100:], pixels[:, 100:])
