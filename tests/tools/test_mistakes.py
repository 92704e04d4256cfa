"""Mistakes of users with their own data, and the sentence that each ends with; the status is 1, or argparse's 2.

One or two of each kind: all arguments of backbones are in tests/models, faults of files in tests/openmmlab_runs/data.
"""
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from tests.conftest import GOLDEN, MASK_RCNN, ROOT, UPERNET, toy_overrides
from tests.tools.conftest import Run, cut

TRAINING, VALIDATION = 'instances_training.json', 'instances_validation.json'
DATASET = 'train_dataloader.dataset'
BACKBONE = 'model.backbone'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is empty."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def train(run_tool: Run, data: Path) -> Run:
    """Trains for an iteration and validates; returns what the tool ends with."""

    def run(config: Path | str, options: str = '', arguments: str = '') -> str:
        metrics = {f'{split}_evaluator.ann_file': data / VALIDATION for split in ('val', 'test') if config == MASK_RCNN}
        unit = 'max_epochs' if 'coco' in str(config) else 'max_iters'
        all_options = toy_overrides(data, **{f'train_cfg.{unit}': 1, 'train_cfg.val_interval': 1}, **metrics)
        return run_tool('train.py', config, '--work-dir', 'work', *arguments.split(), '--cfg-options',
                        *(f'{key}={value}' for key, value in all_options.items()), *options.split())

    return run


def check(message: str, words: str) -> None:
    assert message.startswith('error: ') and '\n' not in message and words in message, message


@pytest.mark.parametrize('arguments, words', [
    ('--launcher pytorch', 'is for processes that pytorch starts, but RANK is not set'),
    ('--auto-scale-lr', '--auto-scale-lr needs auto_scale_lr.base_batch_size'),
    ('--resume no.pth', 'checkpoint no.pth does not exist: check the path.'),
    ('--resume published.pth', 'has no meta, optimizer, message_hub, so training cannot resume from it'),
    ('--resume garbage.pth', 'checkpoint garbage.pth is damaged')])
def test_arguments(train: Run, arguments: str, words: str) -> None:
    torch.save(dict(state_dict=dict(weight=torch.ones(1))), 'published.pth')
    Path('garbage.pth').write_bytes(b'no checkpoint')
    check(train(UPERNET, arguments=arguments), words)


@pytest.mark.skipif(torch.cuda.is_available(), reason='tells what happens without a GPU')
def test_mixed_precision_on_a_cpu(train: Run) -> None:
    check(train(UPERNET, arguments='--amp'), 'Mixed precision needs a GPU, but torch sees none: leave out --amp.')
    config = ROOT / 'configs/pyramid_cpvt/mask-rcnn_pyramid-cpvt-s_fpn_amp-ms-crop-3x_coco.py'
    check(train(config), 'Mixed precision needs a GPU')


@pytest.mark.parametrize('tool', ['train.py own.py', 'test.py own.py x.pth'])
@pytest.mark.parametrize('content, words', [(None, 'config own.py does not exist: check the path.'),
                                            ('model = dict(', 'config own.py cannot be read (SyntaxError: '),
                                            ("custom_imports = dict(imports=['raising'])", 'no colour today')])
def test_configs(run_tool: Run, tool: str, content: str | None, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend('.')
    Path('raising.py').write_text("raise ImportError('no colour today')")
    if content is not None:
        Path('own.py').write_text(content)
    check(run_tool(*tool.split()), words)


@pytest.mark.slow
@pytest.mark.parametrize('options, words', [
    # Misspelt words.
    (f'{BACKBONE}.drop_path=0.1', "unexpected keyword argument 'drop_path'"),
    (f'{BACKBONE}.type=PyramidCVPT', 'PyramidCVPT is not in the'),
    ('optim_wrapper.optimizer.type=AdmaW', 'type is AdmaW, which is not a registered optimizer: did you mean AdamW'),
    # What does not fit together.
    (f'{BACKBONE}.in_channels=4',
     'data_preprocessor.mean has 3 values, but backbone.in_channels is 4: set in_channels=3, or'),
    (f'{BACKBONE}.arch=tiny', 'model.decode_head.in_channels is [32, 64, 128, 192], but the backbone returns 4 maps'),
    (f'{DATASET}.pipeline.1.reduce_zero_label=True', '000.jpg (AssertionError: Initialize dataset with'),
    (f'load_from={GOLDEN}/timm.pth', "which has no weights below 'backbone'"),
    # What is not there.
    (f'{BACKBONE}.init_cfg.type=Pretrained {BACKBONE}.init_cfg.checkpoint=no.pth', 'checkpoint no.pth does not exist'),
    (f'{DATASET}.data_root=no',
     f'no/images/training does not exist: put the file there, or correct {DATASET}.data_root'),
    ('optim_wrapper.optimizer.lr=1e30 train_cfg.max_iters=9', 'Training has stopped: ')])
def test_options_of_a_segmentor(train: Run, options: str, words: str) -> None:
    check(train(UPERNET, options), words)


def images(damage: Callable[[Path], object], pattern: str = 'images/training/*') -> Callable[[Path], object]:
    return lambda data: [damage(path) for path in data.glob(pattern)]


LABELS = 'annotations/training/*'


@pytest.mark.slow
@pytest.mark.parametrize('config, damage, words', [
    (MASK_RCNN, lambda data: cut(data / TRAINING), 'is not JSON ('),
    (UPERNET, images(cut), 'cannot be read: image file is truncated'),
    (UPERNET, images(Path.unlink, LABELS), '.png does not exist'),
    (UPERNET, images(lambda path: cv2.imwrite(str(path), np.zeros((16, 16), np.uint8)), LABELS),
     'is 16 x 16 pixels (height x width), but its image ')])
def test_damaged_data(train: Run, data: Path, config: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(data)
    check(train(config), words)


@pytest.mark.parametrize('tool, package', [
    ('tools/train.py', 'cpvt_mm'), ('demo/image_demo.py', 'cpvt_mm'), ('tools/analysis_tools/benchmark.py', 'lab')])
def test_a_tool_outside_the_environment_says_so(tool: str, package: str) -> None:
    # -S hides the packages of the environment, -E a PYTHONPATH.
    run = subprocess.run([sys.executable, '-S', '-E', ROOT / tool], capture_output=True, text=True)
    assert run.stderr.startswith(f'error: {sys.executable} has no {package}: activate ') and run.returncode == 1
