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


@pytest.mark.parametrize('scope, inferencer, is_published', [
    ('mmdet', 'DetInferencer', False), pytest.param('mmseg', 'MMSegInferencer', False, marks=pytest.mark.slow),
    pytest.param('mmdet', 'DetInferencer', True, marks=pytest.mark.slow),
])
def test_what_a_training_leaves_is_enough(scope: str, inferencer: str, is_published: bool, toy_shapes: Path,
                                          trained: dict[str, Trained], tmp_path: Path, run_python: Run) -> None:
    config, checkpoint = trained[scope]
    arguments = f'{str(config)!r}, {str(checkpoint)!r}'
    if is_published:  # it holds the config, too
        checkpoint, _ = publish_model(checkpoint, tmp_path / 'model')
        arguments = f'weights={str(checkpoint)!r}'
    image = str(toy_shapes / 'images/validation/000000.jpg')
    done = run_python(INFER.format(scope=scope, inferencer=inferencer, arguments=arguments, image=image,
                                   checkpoint=str(checkpoint)))
    assert done.returncode == 0, done.stderr
    # onedl's mmengine answers a refusal by reading the file with all its code, and says so.
    assert 'weights_only' not in done.stdout + done.stderr
    prediction = ['bboxes', 'labels', 'masks', 'scores'] if scope == 'mmdet' else cv2.imread(image).shape[:2]
    assert done.stdout.splitlines()[-3:] == ['all weights: True', f'prediction: {prediction}', 'files: []']
