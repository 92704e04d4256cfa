"""Mistakes in the options of a training, and the sentence that each ends with; test_entrances.py has those in files."""
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import GOLDEN, MASK_RCNN, ROOT, UPERNET, toy_overrides
from tests.tools.conftest import Run

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


@pytest.mark.slow
@pytest.mark.parametrize('options, words', [
    (f'{BACKBONE}.type=PyramidCVPT', 'PyramidCVPT is not in the'),
    ('optim_wrapper.optimizer.type=AdmaW', 'type is AdmaW, which is not a registered optimizer: did you mean AdamW'),
    (f'{BACKBONE}.in_channels=4',
     'data_preprocessor.mean has 3 values, but backbone.in_channels is 4: set in_channels=3, or'),
    (f'{BACKBONE}.arch=tiny', 'model.decode_head.in_channels is [32, 64, 128, 192], but the backbone returns 4 maps'),
    (f'{DATASET}.pipeline.1.reduce_zero_label=True', '000.jpg (AssertionError: Initialize dataset with'),
    (f'load_from={GOLDEN}/timm.pth', "which has no weights below 'backbone'"),
    (f'{BACKBONE}.init_cfg.type=Pretrained {BACKBONE}.init_cfg.checkpoint=no.pth', 'checkpoint no.pth does not exist'),
    (f'{DATASET}.data_root=no',
     f'no/images/training does not exist: put the file there, or correct {DATASET}.data_root'),
    ('optim_wrapper.optimizer.lr=1e30 train_cfg.max_iters=9', 'Training has stopped: ')])
def test_options_of_a_segmentor(train: Run, options: str, words: str) -> None:
    check(train(UPERNET, options), words)


@pytest.mark.parametrize('tool, package', [
    ('tools/train.py', 'cpvt_mm'), ('demo/image_demo.py', 'cpvt_mm'), ('tools/analysis_tools/benchmark.py', 'lab')])
def test_a_tool_outside_the_environment_says_so(tool: str, package: str) -> None:
    # -S hides the packages of the environment, -E a PYTHONPATH.
    run = subprocess.run([sys.executable, '-S', '-E', ROOT / tool], capture_output=True, text=True)
    assert run.stderr.startswith(f'error: {sys.executable} has no {package}: activate ') and run.returncode == 1
