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

from tests.conftest import GOLDEN, MASK_RCNN, ROOT, UPERNET, Trained, toy_overrides
from tests.tools.conftest import Run, change_annotations, cut

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
    ('--launcher slurm', 'is for processes that slurm starts, but SLURM_PROCID'),
    ('--launcher mpi', 'is for processes that mpi starts, but OMPI_COMM_WORLD_RANK'),
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


def test_an_option_without_a_value(run_tool: Run, capsys: pytest.CaptureFixture) -> None:
    assert run_tool('train.py', UPERNET, '--cfg-options', 'max_iters') == '2'
    assert capsys.readouterr().err.endswith('error: --cfg-options max_iters has no value: write max_iters=VALUE\n')


@pytest.mark.parametrize('tool', ['train.py own.py', 'test.py own.py x.pth'])
@pytest.mark.parametrize('content, words', [(None, 'config own.py does not exist: check the path.'),
                                            ('model = dict(', 'config own.py cannot be read (SyntaxError: '),
                                            ("custom_imports = dict(imports=['own_module'])", 'own_module'),
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
    (f'{BACKBONE}.position_encoding.type=PGE', 'PGE'), (f'{BACKBONE}.type=PyramidCVPT', 'PyramidCVPT is not in the'),
    ('model.type=EncoderDecode', 'EncoderDecode is not in the'),
    (f'{DATASET}.type=ToyShape', 'ToyShape'), (f'{DATASET}.pipeline.0.type=LoadImage', 'LoadImage is not in the'),
    ('default_hooks.logger.type=LogHook', 'LogHook is not in the'),
    ('val_evaluator.type=IuMetric', 'IuMetric is not in the'),
    ('optim_wrapper.optimizer.type=AdmaW', 'type is AdmaW, which is not a registered optimizer: did you mean AdamW'),
    # What does not fit together.
    (f'{BACKBONE}.in_channels=4',
     'data_preprocessor.mean has 3 values, but backbone.in_channels is 4: give mean and std as many'),
    (f'{BACKBONE}.arch=tiny', 'model.decode_head.in_channels is [32, 64, 128, 192], but the backbone returns 4 maps'),
    ('model.decode_head.num_classes=2', 'model.decode_head.num_classes is 2, but the dataset has 6 classes'),
    ('model.auxiliary_head.num_classes=7', 'model.auxiliary_head.num_classes is 7, but the dataset has 6 classes'),
    (f'{DATASET}.pipeline.1.reduce_zero_label=True', '000.jpg (AssertionError in LoadAnnotations: '),
    (f'load_from={GOLDEN}/timm.pth', "which has no weights below 'backbone'"),
    # What is not there.
    (f'{BACKBONE}.init_cfg.type=Pretrained {BACKBONE}.init_cfg.checkpoint=no.pth', 'checkpoint no.pth does not exist'),
    ('load_from=no.pth', 'checkpoint no.pth does not exist: check the path.'),
    (f'{DATASET}.data_root=no',
     f'no/images/training does not exist: put the file there, or correct {DATASET}.data_root'),
    (f'{DATASET}.data_prefix.seg_map_path=no', 'data/no/'),
    (f'{DATASET}.img_suffix=.tiff', 'training (*.tiff) has no image: put'),
    ('optim_wrapper.optimizer.lr=1e30 train_cfg.max_iters=9', 'Training has stopped: ')])
def test_options_of_a_segmentor(train: Run, options: str, words: str) -> None:
    check(train(UPERNET, options), words)


@pytest.mark.slow
def test_load_from_another_arch(train: Run, trained: dict[str, Trained]) -> None:
    heads = 'model.decode_head.in_channels=[64,128,320,512] model.auxiliary_head.in_channels=320'
    options = f"load_from={trained['mmseg'].checkpoint} {BACKBONE}.arch=tiny {heads}"
    check(train(UPERNET, options), 'does not fit the PyramidCPVT, ')


def images(damage: Callable[[Path], object], pattern: str = 'images/training/*') -> Callable[[Path], object]:
    return lambda data: [damage(path) for path in data.glob(pattern)]


LABELS = 'annotations/training/*'


@pytest.mark.slow
@pytest.mark.parametrize('config, damage, words', [
    (MASK_RCNN, lambda data: (data / TRAINING).unlink(), f'{TRAINING} does not exist: put'),
    (MASK_RCNN, lambda data: cut(data / TRAINING), 'is not JSON ('),
    (MASK_RCNN, lambda data: (data / VALIDATION).write_text(''), 'is empty (0 bytes)'),
    (UPERNET, images(cut), 'cannot be read: image file is truncated'),
    (UPERNET, images(lambda path: path.write_text('x' * 99)), 'is not an image that Pillow can read'),
    (UPERNET, images(Path.unlink), 'has no image: put the data there'),
    (UPERNET, images(Path.unlink, LABELS), '.png does not exist'), (UPERNET, images(cut, LABELS), 'cannot be read: '),
    (UPERNET, images(lambda path: cv2.imwrite(str(path), np.zeros((16, 16), np.uint8)), LABELS),
     'has shape (16, 16), but its image is ')])
def test_damaged_data(train: Run, data: Path, config: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(data)
    check(train(config), words)


@pytest.mark.slow
@pytest.mark.parametrize('config', [UPERNET, MASK_RCNN], ids=['segmentor', 'detector'])
def test_a_worker_names_its_image(train: Run, data: Path, config: Path) -> None:
    images(cut)(data)
    message = train(config, 'train_dataloader.num_workers=1')
    assert message.startswith(f'error: {data}/images/training/00000')
    check(message, 'cannot be read: image file is truncated')


def test_a_label_that_is_no_class_is_named_also_in_validation(train: Run, data: Path) -> None:
    path = data / 'annotations/validation/000003.png'
    cv2.imwrite(str(path), np.maximum(cv2.imread(str(path), cv2.IMREAD_UNCHANGED), 6))
    check(train(UPERNET), f'label map {path} has class 6, but there are 6 classes')


@pytest.mark.slow
@pytest.mark.parametrize('file, words', [(TRAINING, 'which lacks'), ('no.json', 'which cannot be read')])
def test_a_metric_of_other_annotations(train: Run, data: Path, file: str, words: str) -> None:
    change_annotations(data / VALIDATION, lambda coco: [
        coco.update(annotations=[]), *(image.update(id=image['id'] + 100) for image in coco['images'])])
    check(train(MASK_RCNN, f'val_evaluator.ann_file={data / file}'),
          f'val_evaluator.ann_file is {data / file}, {words}')


@pytest.mark.slow
def test_what_mmdet_leaves_out_is_told(train: Run, data: Path, capsys: pytest.CaptureFixture) -> None:
    change_annotations(data / TRAINING, lambda coco: (coco['categories'].append(dict(id=6, name='moon')),
                                                      coco['annotations'][0].update(category_id=6),
                                                      coco['annotations'][1].update(bbox=[0, 0, 0, 0])))
    assert train(MASK_RCNN, 'log_level=INFO') == ''
    log = ''.join(capsys.readouterr())
    assert f"{data / TRAINING} has 1 annotations of 'moon', which are ignored: it is not a class" in log
    assert f'{data / TRAINING} has bbox [0, 0, 0, 0] in annotation 2 of 000000.jpg' in log


@pytest.mark.slow
@pytest.mark.parametrize('workers', [0, 1])
def test_testing_names_files_too(run_tool: Run, data: Path, workers: int, trained: dict[str, Trained]) -> None:
    cut(path := data / 'images/validation/000002.jpg')
    options = toy_overrides(data, **{'test_dataloader.num_workers': workers})
    message = run_tool('test.py', UPERNET, trained['mmseg'].checkpoint, '--work-dir', 'work', '--cfg-options',
                       *(f'{key}={value}' for key, value in options.items()))
    check(message, f'{path} cannot be read: image file is truncated')


@pytest.mark.slow
def test_a_checkpoint_of_another_model(run_tool: Run, toy_shapes: Path) -> None:
    weights = dict(weight=torch.ones(1))
    torch.save(dict(meta=dict(iter=1, epoch=0), optimizer={}, message_hub={}, state_dict=weights), 'other.pth')
    data = ['--cfg-options', *(f'{split}_dataloader.dataset.data_root={toy_shapes}' for split in ('train', 'test'))]
    for arguments in (['test.py', UPERNET, 'other.pth'], ['train.py', UPERNET, '--resume', 'other.pth']):
        message = run_tool(*arguments, *data)
        check(message, 'checkpoint other.pth does not fit the model of the config')
        check(message, '1 left over (weight)')
    check(run_tool('test.py', UPERNET, 'no.pth', *data), 'checkpoint no.pth does not exist: check the path.')


@pytest.mark.parametrize('tool', sorted(
    str(file.relative_to(ROOT)) for folder in ('tools', 'demo') for file in (ROOT / folder).rglob('*.py')
    if '@exit_on_error' in file.read_text()))
def test_a_tool_outside_the_environment_says_so(tool: str) -> None:
    # -S hides the packages of the environment, -E a PYTHONPATH.
    run = subprocess.run([sys.executable, '-S', '-E', ROOT / tool], capture_output=True, text=True)
    assert run.stderr == (f'error: {sys.executable} has no cpvt_mm: activate the environment that has it '
                          '(docs/get_started.md).\n')
    assert run.returncode == 1
