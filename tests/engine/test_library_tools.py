"""The tools of mmdet and mmseg on what a run of this project leaves."""
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import cv2
import pytest
from mmengine.config import Config

from cpvt_mm.weights.convert import publish_model
from tests.conftest import Trained, read_anywhere

from .test_durability import KILLED, assert_same, die_at_step, run

MMDET = Path(find_spec('mmdet').origin).parent
TOOL = next((path for path in (MMDET / '.mim/tools/train.py', MMDET.parent / 'tools/train.py') if path.exists()), None)
OPTIONS = ['train_cfg.max_iters=4', 'default_hooks.checkpoint.interval=2', 'default_hooks.checkpoint.max_keep_ckpts=1',
           'model.backbone.drop_path_rate=0.3', 'train_dataloader.num_workers=1', 'log_level=WARNING']


@pytest.mark.slow
@pytest.mark.skipif(TOOL is None, reason='mmdet is installed without its tools')
def test_a_killed_training_resumes_to_the_bit_and_is_guarded(trained: dict[str, Trained], toy_shapes: Path,
                                                             tmp_path: Path) -> None:
    config = trained['mmdet'].config
    # The seed that the run drew is in the file, so that the order of the data is the same after a resume.
    assert isinstance(Config.fromfile(config).randomness.seed, int)
    whole, part, bad, output = (tmp_path / name for name in ('whole', 'part', 'bad', 'output.txt'))
    # A new process, which has not imported this project.
    subprocess.run([sys.executable, TOOL, config, '--work-dir', whole, '--cfg-options', *OPTIONS], check=True,
                   cwd=tmp_path, timeout=300)
    part_run = TOOL, config, '--work-dir', part
    assert run(output, *part_run, '--cfg-options', *OPTIONS, trap=die_at_step, number=5) == KILLED
    assert (part / 'last_checkpoint').read_text() == f'{part}/iter_2.pth'
    assert run(output, *part_run, '--resume', '--cfg-options', *OPTIONS) == 0
    assert f'{part}/iter_2.pth' in output.read_text()

    assert_same(whole / 'iter_4.pth', part / 'iter_4.pth')
    assert sorted(path.name for path in part.glob('*.pth*')) == ['iter_4.pth']
    read_anywhere(part / 'iter_4.pth')  # plain types only

    assert run(output, TOOL, config, '--work-dir', bad, '--cfg-options', *OPTIONS,
               'model.roi_head.mask_head.loss_mask.loss_weight=1e39') == 1
    assert ('UserError: Training has stopped: in iteration 3 loss_mask is inf '
            f'(images {toy_shapes}/images/training/') in output.read_text()
    assert not list(bad.glob('*.pth'))


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
