"""Mistakes of users with their own data, and the sentence that each ends with; the status is 1, or argparse's 2.

There are one or two of each kind. All arguments of backbones are in tests/models, all faults of annotations, images and
label maps in tests/data.
"""
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

    def run(config: Path | str, *arguments: str, **options: Any) -> str:
        metrics = {f'{split}_evaluator.ann_file': data / VALIDATION for split in ('val', 'test')
                   if config == MASK_RCNN}
        options = toy_overrides(data, **{'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1}, **metrics) | options
        return run_tool('train.py', config, '--work-dir', 'work', *arguments, '--cfg-options',
                        *(f'{key}={value}' for key, value in options.items()))

    return run


def check(message: str, words: str) -> None:
    assert message.startswith('error: ') and '\n' not in message, message
    assert words in message, message


ARGUMENTS = {
    'pytorch started nothing': (['--launcher', 'pytorch'], 'is for processes that pytorch starts, but RANK is not set'),
    'slurm started nothing': (['--launcher', 'slurm'], 'is for processes that slurm starts, but SLURM_PROCID'),
    'mpi started nothing': (['--launcher', 'mpi'], 'is for processes that mpi starts, but OMPI_COMM_WORLD_RANK'),
    'auto-scale-lr without a base': (['--auto-scale-lr'], '--auto-scale-lr needs auto_scale_lr.base_batch_size'),
    'resume: no such file': (['--resume', 'no.pth'], 'checkpoint no.pth does not exist: check the path.'),
    'resume: a published file': (['--resume', 'weights.pth'],
                                 'has no meta, optimizer, message_hub, so training cannot resume from it'),
    'resume: no checkpoint': (['--resume', 'garbage.pth'], 'checkpoint garbage.pth is damaged'),
}


@pytest.mark.parametrize('arguments, words', ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments(train: Run, arguments: list[str], words: str) -> None:
    torch.save(dict(state_dict=dict(weight=torch.ones(1))), 'weights.pth')
    Path('garbage.pth').write_bytes(b'no checkpoint')
    check(train(UPERNET, *arguments), words)


@pytest.mark.skipif(torch.cuda.is_available(), reason='tells what happens without a GPU')
def test_mixed_precision_on_a_cpu(train: Run) -> None:
    check(train(UPERNET, '--amp'), 'Mixed precision needs a GPU, but torch sees none: leave out --amp.')
    config = ROOT / 'configs/pyramid_cpvt/mask-rcnn_pyramid-cpvt-s_fpn_amp-ms-crop-3x_coco.py'
    check(train(config), 'Mixed precision needs a GPU')


def test_an_option_without_a_value(run_tool: Run, capsys: pytest.CaptureFixture) -> None:
    assert run_tool('train.py', UPERNET, '--cfg-options', 'max_iters') == '2'
    assert capsys.readouterr().err.splitlines()[-1].endswith(
        'error: --cfg-options max_iters has no value: write max_iters=VALUE')


@pytest.mark.parametrize('tool, more', [('train.py', []), ('test.py', ['x.pth'])])
@pytest.mark.parametrize('content, words', [
    (None, 'config own.py does not exist: check the path.'),
    ('model = dict(', 'config own.py cannot be read (SyntaxError: '),
    ("custom_imports = dict(imports=['own_module'])", 'own_module'),
    ("custom_imports = dict(imports=['raising'])", 'no colour today'),
])
def test_configs(run_tool: Run, tool: str, more: list[str], content: str | None, words: str,
                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend('.')
    Path('raising.py').write_text("raise ImportError('no colour today')")
    if content is not None:
        Path('own.py').write_text(content)
    check(run_tool(tool, 'own.py', *more), words)


OPTIONS = {
    'a misspelt key of the backbone': ({f'{BACKBONE}.drop_path': 0.1}, "unexpected keyword argument 'drop_path'"),
    'an unknown position encoding': ({f'{BACKBONE}.position_encoding.type': 'PGE'}, 'PGE'),
    'a misspelt backbone': ({f'{BACKBONE}.type': 'PyramidCVPT'}, 'PyramidCVPT is not in the'),
    'a misspelt model': ({'model.type': 'EncoderDecode'}, 'EncoderDecode is not in the'),
    'a misspelt dataset': ({f'{DATASET}.type': 'ToyShape'}, 'ToyShape'),
    'a misspelt transform': ({f'{DATASET}.pipeline.0.type': 'LoadImage'}, 'LoadImage is not in the'),
    'a misspelt hook': ({'default_hooks.logger.type': 'LogHook'}, 'LogHook is not in the'),
    'a misspelt metric': ({'val_evaluator.type': 'IuMetric'}, 'IuMetric is not in the'),
    'a misspelt optimizer': ({'optim_wrapper.optimizer.type': 'AdmaW'}, 'type is AdmaW, which is not a registered opti'
                             'mizer: did you mean AdamW'),
    'channels without the data preprocessor': ({f'{BACKBONE}.in_channels': 4}, 'data_preprocessor.mean has 3 values, '
                                               'but backbone.in_channels is 4: give mean and std as many'),
    'arch without the neck or head': ({f'{BACKBONE}.arch': 'tiny'}, 'in decode_head.'),
    'a head of fewer classes': ({'model.decode_head.num_classes': 2}, 'model.decode_head.num_classes is 2, but the '
                                'dataset has 6 classes'),
    'an auxiliary head of fewer classes': ({'model.auxiliary_head.num_classes': 2}, 'IndexError in auxiliary_head'),
    'zero label reduced in the pipeline alone': ({f'{DATASET}.pipeline.1.reduce_zero_label': True},
                                                 '000.jpg (AssertionError in LoadAnnotations: '),
    'pretrained: no such file': ({f'{BACKBONE}.init_cfg.type': 'Pretrained',
                                  f'{BACKBONE}.init_cfg.checkpoint': 'no.pth'}, 'checkpoint no.pth does not exist'),
    'load_from: no such file': ({'load_from': 'no.pth'}, 'load_from is no.pth, but this file does not exist'),
    'load_from: a backbone alone': ({'load_from': GOLDEN / 'timm.pth'}, "which has no weights below 'backbone'"),
    'data_root that is not there': ({f'{DATASET}.data_root': 'no'}, 'no/images/training does not exist: put the file '
                                    f'there, or correct {DATASET}.data_root'),
    'a folder of label maps that is not there': ({f'{DATASET}.data_prefix.seg_map_path': 'no'}, 'data/no/'),
    'a suffix of images that is wrong': ({f'{DATASET}.img_suffix': '.tiff'}, 'training (*.tiff) has no image: put'),
    'a learning rate that is too high': ({'optim_wrapper.optimizer.lr': 1e30, 'train_cfg.max_iters': 9},
                                         'Training has stopped: '),
}


@pytest.mark.slow
@pytest.mark.parametrize('options, words', OPTIONS.values(), ids=OPTIONS)
def test_options_of_a_segmentor(train: Run, options: dict[str, Any], words: str) -> None:
    check(train(UPERNET, **options), words)


@pytest.mark.slow
def test_load_from_another_arch(train: Run, trained: dict[str, Trained]) -> None:
    message = train(UPERNET, load_from=trained['mmseg'].checkpoint, **{
        f'{BACKBONE}.arch': 'tiny', 'model.decode_head.in_channels': '[64,128,320,512]',
        'model.auxiliary_head.in_channels': 320})
    check(message, 'does not fit the PyramidCPVT, ')


def annotations(change: Callable[[dict], object], file: str = TRAINING) -> Callable[[Path], None]:
    return lambda data: change_annotations(data / file, change)


def change_widths(coco: dict) -> None:
    for image in coco['images']:
        image['width'] += 1
    for annotation in coco['annotations']:
        annotation['segmentation'] = [[1, 1, 5, 1, 5, 5]]


ANNOTATIONS = {
    'no file': (lambda data: (data / TRAINING).unlink(), f'{TRAINING} does not exist: put'),
    'a file that ends early': (lambda data: cut(data / TRAINING), 'is not JSON ('),
    'an id twice': (annotations(lambda coco: coco['annotations'][1].update(id=1)), 'has id 1 2 times in annotations'),
    'no mask in one': (annotations(lambda coco: coco['annotations'][0].pop('segmentation')),
                       'has no segmentation in annotation 1 of 000000.jpg'),
    'a class without a category': (annotations(lambda coco: coco['categories'].pop(0)),
                                   f'{DATASET}.metainfo.classes does not match the annotations'),
    'images of another size': (annotations(change_widths), 'in the annotations: put the right image there'),
    'an empty file of the metric': (lambda data: (data / VALIDATION).write_text(''), 'is empty (0 bytes)'),
}


def images(damage: Callable[[Path], object], pattern: str = 'images/training/*') -> Callable[[Path], None]:
    def all_of_them(data: Path) -> None:
        for path in data.glob(pattern):
            damage(path)
    return all_of_them


LABELS = 'annotations/training/*'
FILES = {
    'images that end early': (images(cut), 'cannot be read: image file is truncated'),
    'images that are text': (images(lambda path: path.write_text('x' * 99)), 'is not an image that Pillow can read'),
    'no images': (images(Path.unlink), 'has no image: put the data there'),
    'label maps that are missing': (images(Path.unlink, LABELS), '.png does not exist'),
    'label maps that end early': (images(cut, LABELS), 'cannot be read: '),
    'label maps of another size': (images(lambda path: cv2.imwrite(str(path), np.zeros((16, 16), np.uint8)), LABELS),
                                   'has shape (16, 16), but its image is '),
}


@pytest.mark.slow
@pytest.mark.parametrize('config, damage, words', [
    pytest.param(config, *case, id=f'{config.stem.partition("_")[0]}: {name}')
    for config, table in ((MASK_RCNN, ANNOTATIONS), (UPERNET, FILES)) for name, case in table.items()])
def test_damaged_data(train: Run, data: Path, config: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(data)
    check(train(config), words)


@pytest.mark.slow
@pytest.mark.parametrize('config', [UPERNET, MASK_RCNN], ids=['segmentor', 'detector'])
def test_a_worker_names_its_image(train: Run, data: Path, config: Path) -> None:
    images(cut)(data)
    message = train(config, **{'train_dataloader.num_workers': 1})
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
    check(train(MASK_RCNN, **{'val_evaluator.ann_file': data / file}),
          f'val_evaluator.ann_file is {data / file}, {words}')


@pytest.mark.slow
def test_what_mmdet_leaves_out_is_told(train: Run, data: Path, capsys: pytest.CaptureFixture) -> None:
    change_annotations(data / TRAINING, lambda coco: (coco['categories'].append(dict(id=6, name='moon')),
                                                      coco['annotations'][0].update(category_id=6),
                                                      coco['annotations'][1].update(bbox=[0, 0, 0, 0])))
    assert train(MASK_RCNN, log_level='INFO') == ''
    log = capsys.readouterr()
    for words in ("has 1 annotations of 'moon', which are ignored: it is not a class",
                  'has bbox [0, 0, 0, 0] in annotation 2 of 000000.jpg'):
        assert f'{data / TRAINING} {words}' in log.out + log.err


@pytest.mark.slow
@pytest.mark.parametrize('workers', [0, 1])
def test_testing_names_files_too(run_tool: Run, data: Path, workers: int, trained: dict[str, Trained]) -> None:
    path = data / 'images/validation/000002.jpg'
    cut(path)
    options = toy_overrides(data, **{'test_dataloader.num_workers': workers})
    message = run_tool('test.py', UPERNET, trained['mmseg'].checkpoint, '--work-dir', 'work', '--cfg-options',
                       *(f'{key}={value}' for key, value in options.items()))
    check(message, f'{path} cannot be read: image file is truncated')


@pytest.mark.slow
def test_a_checkpoint_of_another_model(run_tool: Run, toy_shapes: Path) -> None:
    torch.save(dict(meta={}, optimizer={}, message_hub={}, state_dict=dict(weight=torch.ones(1))), 'other.pth')
    data = ['--cfg-options', *(f'{split}_dataloader.dataset.data_root={toy_shapes}' for split in ('train', 'test'))]
    for arguments in (['test.py', UPERNET, 'other.pth'], ['train.py', UPERNET, '--resume', 'other.pth']):
        message = run_tool(*arguments, *data)
        check(message, 'checkpoint other.pth does not fit the model of the config')
        check(message, '1 left over (weight)')
    check(run_tool('test.py', UPERNET, 'no.pth', *data), 'checkpoint no.pth does not exist: check the path.')
