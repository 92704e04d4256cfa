"""The inferencers of mmdet and mmseg on what training leaves, in a new interpreter and an empty folder."""
import subprocess
from collections.abc import Callable
from pathlib import Path

import cv2
import pytest

from cpvt_mm.weights.convert import publish_model
from tests.conftest import Trained

Run = Callable[[str], subprocess.CompletedProcess]
INFER = '''
import os, sys
from {scope}.apis import {inferencer}
assert 'cpvt_mm' not in sys.modules
inferencer = {inferencer}({arguments}, device='cpu')
found = inferencer({image!r})['predictions']
import torch
from cpvt_mm.weights.reading import read_checkpoint
state, loaded = read_checkpoint({checkpoint!r})['state_dict'], inferencer.model.state_dict()
print('all weights:', state.keys() == loaded.keys() and all(torch.equal(state[name], loaded[name]) for name in state))
print('prediction:', sorted(found[0]) if isinstance(found[0], dict) else found.shape)
print('files:', os.listdir())
'''


@pytest.fixture
def image(toy_shapes: Path) -> Path:
    return toy_shapes / 'images/validation/000000.jpg'


@pytest.fixture
def infer(run_python: Run, image: Path) -> Callable[..., list[str]]:
    """Runs an inferencer of the library on the image; returns the last three lines it prints."""

    def run(scope: str, inferencer: str, arguments: str, checkpoint: Path) -> list[str]:
        done = run_python(INFER.format(scope=scope, inferencer=inferencer, arguments=arguments, image=str(image),
                                       checkpoint=str(checkpoint)))
        assert done.returncode == 0, done.stderr
        # onedl's mmengine answers a refusal by reading the file with all its code, and says so.
        assert 'weights_only' not in done.stdout + done.stderr
        return done.stdout.splitlines()[-3:]

    return run


@pytest.mark.parametrize('scope, inferencer', [
    ('mmdet', 'DetInferencer'), pytest.param('mmseg', 'MMSegInferencer', marks=pytest.mark.slow)])
def test_the_config_and_checkpoint_of_a_training_are_enough(
        scope: str, inferencer: str, trained: dict[str, Trained], image: Path, infer: Callable[..., list[str]]) -> None:
    config, checkpoint = trained[scope]
    height, width, _ = cv2.imread(str(image)).shape
    prediction = {'mmdet': ['bboxes', 'labels', 'masks', 'scores'], 'mmseg': (height, width)}[scope]
    assert infer(scope, inferencer, f'{str(config)!r}, {str(checkpoint)!r}', checkpoint) == [
        'all weights: True', f'prediction: {prediction}', 'files: []']


@pytest.mark.slow
def test_a_published_checkpoint_holds_the_config_too(trained: dict[str, Trained], tmp_path: Path,
                                                     infer: Callable[..., list[str]]) -> None:
    published, _ = publish_model(trained['mmdet'].checkpoint, tmp_path / 'model')
    assert infer('mmdet', 'DetInferencer', f'weights={str(published)!r}', published) == [
        'all weights: True', "prediction: ['bboxes', 'labels', 'masks', 'scores']", 'files: []']
