"""The trained detector of demo/nuclei: batches of several sizes and tiles have the boxes of the whole image alone."""
import numpy as np
import pytest
from mmengine.infer import BaseInferencer
from pycocotools import mask as coco_mask

from openmmlab_tools.engine import load_config
from openmmlab_tools.pictures.images import read_image
from openmmlab_tools.predict.predicting import build_inferencer, infer
from tests.helpers import ROOT


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


def test_a_detector_finds_in_tiles_what_it_finds_in_the_whole_image(nuclei: BaseInferencer) -> None:
    image = read_image(ROOT / 'demo/nuclei/example.png')
    (whole,), (tiled,) = infer(nuclei, image), infer(nuclei, image, batch_size=2, tile=240, overlap=80)
    assert tiled.size == whole.size == tuple(tiled.masks[0]['size']) and tiled.image is image
    sure, actual = (one.above(0.7) for one in (whole, tiled))
    overlaps = coco_mask.iou(sure.masks, actual.masks, [0] * len(actual.masks))
    assert len(sure.boxes) > 15 and abs(len(sure.boxes) - len(actual.boxes)) <= 2
    assert np.mean(overlaps.max(axis=1) > 0.8) > 0.9
