"""Mistakes of users with their own data, and the sentence that each ends with; the status is 1, or argparse's 2."""
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from tests.conftest import GOLDEN, MASK_RCNN, UPERNET, Trained, toy_overrides

Run = Callable[..., str]
TRAINING, VALIDATION = 'instances_training.json', 'instances_validation.json'
DATASET = 'train_dataloader.dataset'
BACKBONE = 'model.backbone'


@pytest.fixture
def data(toy_shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to damage, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(toy_shapes, tmp_path / 'data')


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


def check(message: str, words: str, data: Path) -> None:
    assert message.startswith('error: ') and '\n' not in message, message
    assert words.format(data=data) in message, message


ARGUMENTS = {
    'a launcher that started nothing': (['--launcher', 'pytorch'], 'RANK is not set: use dist_train.sh'),
    'auto-scale-lr without a base': (['--auto-scale-lr'], '--auto-scale-lr needs auto_scale_lr.base_batch_size'),
    'resume: no such file': (['--resume', 'no.pth'], 'checkpoint no.pth does not exist: check the path.'),
    'resume: a published file': (['--resume', 'weights.pth'],
                                 'has no meta, optimizer, message_hub, so training cannot resume from it'),
    'resume: no checkpoint': (['--resume', 'garbage.pth'], 'checkpoint garbage.pth is damaged'),
}


@pytest.mark.parametrize('name', ARGUMENTS)
def test_arguments(train: Run, data: Path, name: str) -> None:
    arguments, words = ARGUMENTS[name]
    torch.save(dict(state_dict=dict(weight=torch.ones(1))), 'weights.pth')
    Path('garbage.pth').write_bytes(b'no checkpoint')
    check(train(UPERNET, *arguments), words, data)


@pytest.mark.skipif(torch.cuda.is_available(), reason='tells what happens without a GPU')
def test_mixed_precision_on_a_cpu(train: Run, data: Path) -> None:
    check(train(UPERNET, '--amp'), 'Mixed precision needs a GPU, but torch sees none: leave out --amp.', data)


def test_an_option_without_a_value(run_tool: Run, data: Path, capsys: pytest.CaptureFixture) -> None:
    assert run_tool('train.py', UPERNET, '--cfg-options', 'max_iters') == '2'
    assert capsys.readouterr().err.splitlines()[-1].endswith(
        'error: --cfg-options max_iters has no value: write max_iters=VALUE')


CONFIGS = {
    'no such file': (None, 'config own.py does not exist: check the path.'),
    'a syntax error': ('model = dict(', 'config own.py cannot be read (SyntaxError: '),
    'a _base_ that is not there': ("_base_ = './no.py'", 'config own.py cannot be read (FileNotFoundError: '),
    'no default_scope': ('model = dict()', 'default_scope of config own.py is None, but must be mmdet, mmseg or '),
    'a custom import that fails': ("custom_imports = dict(imports=['own_module'])", 'own_module'),
    'a custom import that raises': ("custom_imports = dict(imports=['raising'])", 'no colour today'),
}


@pytest.mark.parametrize('name', CONFIGS)
def test_configs(run_tool: Run, data: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content, words = CONFIGS[name]
    monkeypatch.syspath_prepend('.')
    Path('raising.py').write_text("raise ImportError('no colour today')")
    if content is not None:
        Path('own.py').write_text(content)
    check(run_tool('train.py', 'own.py'), words, data)


OPTIONS = {
    'a misspelt optimizer': ({'optim_wrapper.optimizer.type': 'AdmaW'}, 'type is AdmaW, which is not a registered opti'
                             'mizer: did you mean AdamW'),
    'a misspelt key of the backbone': ({f'{BACKBONE}.drop_path': 0.1}, "'drop_path' is not an argument of PyramidCPVT"),
    'an unknown arch': ({f'{BACKBONE}.arch': 'huge'}, 'nano, tiny, small, base, large'),
    'an unknown position encoding': ({f'{BACKBONE}.position_encoding.type': 'PGE'}, 'PGE'),
    'a rate above 1': ({f'{BACKBONE}.drop_path_rate': 1.5}, 'drop_path_rate is 1.5, but must be a number in [0, 1)'),
    'a value of with_cp': ({f'{BACKBONE}.with_cp': 'all'}, "with_cp is 'all', but must be False, True or 'selective'"),
    'stages out of order': ({f'{BACKBONE}.out_indices': '[1,0]'}, 'out_indices is [1, 0], but must be a sequence of '),
    'a value of sr_mode': ({f'{BACKBONE}.sr_mode': 'mean'}, "'mean' is not an sr_mode of PyramidCPVT"),
    'more frozen stages than stages': ({f'{BACKBONE}.frozen_stages': 9}, 'frozen_stages is 9'),
    'a misspelt backbone': ({f'{BACKBONE}.type': 'PyramidCVPT'}, 'PyramidCVPT is not in the'),
    'a misspelt model': ({'model.type': 'EncoderDecode'}, 'EncoderDecode is not in the'),
    'a misspelt dataset': ({f'{DATASET}.type': 'ToyShape'}, 'ToyShape'),
    'a misspelt transform': ({f'{DATASET}.pipeline.0.type': 'LoadImage'}, 'LoadImage is not in the'),
    'a misspelt hook': ({'default_hooks.logger.type': 'LogHook'}, 'LogHook is not in the'),
    'a misspelt metric': ({'val_evaluator.type': 'IuMetric'}, 'IuMetric is not in the'),
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
    'pretrained: of another backbone': ({f'{BACKBONE}.init_cfg.type': 'Pretrained',
                                         f'{BACKBONE}.init_cfg.checkpoint': GOLDEN / 'deit_timm.pth'},
                                        'holds a CPVT (format timm), but the backbone is a PyramidCPVT'),
    'pretrained: of another arch': ({f'{BACKBONE}.init_cfg.type': 'Pretrained',
                                     f'{BACKBONE}.init_cfg.checkpoint': GOLDEN / 'timm.pth'},
                                    'use the arch that it was'),
    'load_from: no such file': ({'load_from': 'no.pth'}, 'load_from is no.pth, but this file does not exist'),
    'load_from: a backbone alone': ({'load_from': GOLDEN / 'timm.pth'}, "which has no weights below 'backbone'"),
    'data_root that is not there': ({f'{DATASET}.data_root': 'no'}, 'no/images/training does not exist: put the file '
                                    f'there, or correct {DATASET}.data_root'),
    'a folder of images that is not there': ({f'{DATASET}.data_prefix.img_path': 'no'}, '{data}/no does not exist'),
    'a folder of label maps that is not there': ({f'{DATASET}.data_prefix.seg_map_path': 'no'}, '{data}/no'),
    'a suffix of images that is wrong': ({f'{DATASET}.img_suffix': '.tiff'}, 'training (*.tiff) has no image: put'),
    'a learning rate that is too high': ({'optim_wrapper.optimizer.lr': 1e30, 'train_cfg.max_iters': 9},
                                         'Training has stopped: '),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', OPTIONS)
def test_options_of_a_segmentor(train: Run, data: Path, name: str) -> None:
    options, words = OPTIONS[name]
    check(train(UPERNET, **options), words, data)


@pytest.mark.slow
def test_load_from_another_arch(train: Run, data: Path, trained: dict[str, Trained]) -> None:
    message = train(UPERNET, load_from=trained['mmseg'].checkpoint, **{
        f'{BACKBONE}.arch': 'tiny', 'model.decode_head.in_channels': '[64,128,320,512]',
        'model.auxiliary_head.in_channels': 320})
    check(message, 'does not fit the PyramidCPVT, ', data)


def annotations(change: Callable[[dict], object], file: str = TRAINING) -> Callable[[Path], None]:
    def damage(data: Path) -> None:
        coco = json.loads((data / file).read_text())
        change(coco)
        (data / file).write_text(json.dumps(coco))
    return damage


def each(**changes: Any) -> Callable[[Path], None]:
    return annotations(lambda coco: [annotation.update(changes) for annotation in coco['annotations']])


def first(**changes: Any) -> Callable[[Path], None]:
    return annotations(lambda coco: coco['annotations'][0].update(changes))


def text(content: str) -> Callable[[Path], Any]:
    return lambda data: (data / TRAINING).write_text(content)


def to_corners(coco: dict) -> None:
    for annotation in coco['annotations']:
        x, y, width, height = annotation['bbox']
        annotation['bbox'] = [x, y, x + width, y + height]


ANNOTATIONS = {
    'no file': (lambda data: (data / TRAINING).unlink(), '{data}/instances_training.json does not exist: put'),
    'an empty file': (text(''), 'is empty (0 bytes): put the whole file there.'),
    'a file that ends early': (text('{"images": ['), 'is not JSON (Expecting value'),
    'a list': (text('[]'), 'has no images and no categories'),
    'no images': (annotations(lambda coco: coco.update(images=[])), "has no images: put a file in COCO's layout"),
    'no categories': (annotations(lambda coco: coco.pop('categories')), 'has no categories: put a file'),
    'no annotations': (annotations(lambda coco: coco.update(annotations=[])), 'has no annotations, and filter_cfg.'),
    'images without a height': (annotations(lambda coco: coco['images'][0].pop('height')),
                                "has no 'height' in images[0]"),
    'a box of three numbers': (first(bbox=[1, 2, 3]), 'has bbox=[1, 2, 3] in annotations[0], but a box is four'),
    'a box of NaN': (first(bbox=[1, 2, 3, float('nan')]), 'has bbox=[1, 2, 3, nan] in annotations[0]'),
    'boxes as corners': (annotations(to_corners), 'boxes fit as corners (x1, y1, x2, y2)'),
    'no mask in one': (annotations(lambda coco: coco['annotations'][0].pop('segmentation')),
                       'has no segmentation in annotation 1 of 000000.jpg'),
    'masks that are empty lists': (each(segmentation=[]), 'but the pipeline loads masks (and '),
    'masks that are empty words': (each(segmentation=''), 'but the pipeline loads masks (and '),
    'a polygon that is not in a list': (first(segmentation=[1, 2, 9, 2, 9, 9]), 'that is not a list of polygons'),
    'a mask of another size': (annotations(lambda coco: coco['annotations'][0]['segmentation'].update(size=[1, 2])),
                               'has a mask of size [1, 2] (height, width) in annotation 1'),
    'a mask that does not decode': (annotations(lambda coco: coco['annotations'][0]['segmentation'].update(
        counts='zz!!')), "has a run-length encoding that does not decode (counts 'zz!!') in annotation 1"),
    'a mask that was printed as bytes': (annotations(lambda coco: coco['annotations'][0]['segmentation'].update(
        counts="b'PPYo1'")), 'has a run-length encoding that does not decode'),
    'an id twice': (annotations(lambda coco: coco['annotations'][1].update(id=1)), 'has id 1 2 times in annotations'),
    'ids that are words': (each(category_id='1'), "has no annotation of a class: the annotations have category_id '1'"),
    'an unknown category': (each(category_id=99), 'has no annotation of a class: the annotations have category_id 99'),
    'a class without a category': (annotations(lambda coco: coco['categories'].pop(0)),
                                   'train_dataloader.dataset.metainfo.classes does not match the annotations'),
    'an empty file of the metric': (lambda data: (data / VALIDATION).write_text(''), 'is empty (0 bytes)'),
}

METRICS = {
    'the annotations of another dataset': (
        TRAINING, 'val_evaluator.ann_file is {data}/instances_training.json, which lacks'),
    'no file': ('no.json', 'val_evaluator.ann_file is {data}/no.json, which cannot be read'),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', METRICS)
def test_metrics(train: Run, data: Path, name: str) -> None:
    file, words = METRICS[name]
    annotations(lambda coco: [coco.update(annotations=[]), *(image.update(id=image['id'] + 100)
                                                             for image in coco['images'])], VALIDATION)(data)
    check(train(MASK_RCNN, **{'val_evaluator.ann_file': data / file}), words, data)


def images(damage: Callable[[Path], object], pattern: str = 'images/training/*') -> Callable[[Path], None]:
    def all_of_them(data: Path) -> None:
        for path in data.glob(pattern):
            damage(path)
    return all_of_them


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


LABELS = 'annotations/training/*'
FILES = {
    'images that end early': (images(cut), 'cannot be read: image file is truncated'),
    'images of zero bytes': (images(lambda path: path.write_bytes(b'')), 'is empty (0 bytes)'),
    'images that are text': (images(lambda path: path.write_text('x' * 99)), 'is not an image that Pillow can read'),
    'no images': (images(Path.unlink), 'has no image: put the data there'),
    'label maps that are missing': (images(Path.unlink, LABELS), '.png does not exist'),
    'label maps that end early': (images(cut, LABELS), 'cannot be read: '),
    'label maps of another size': (images(lambda path: cv2.imwrite(str(path), np.zeros((16, 16), np.uint8)), LABELS),
                                   'has shape (16, 16), but its image is '),
    'labels that are no class': (images(lambda path: cv2.imwrite(str(path), np.full_like(cv2.imread(
        str(path), cv2.IMREAD_UNCHANGED), 77)), LABELS), 'has class 77, but there are 6 classes'),
}


@pytest.mark.slow
@pytest.mark.parametrize('config, damage, words', [
    pytest.param(config, *case, id=f'{config.stem.partition("_")[0]}: {name}')
    for config, table in ((MASK_RCNN, ANNOTATIONS), (UPERNET, FILES)) for name, case in table.items()])
def test_damaged_data(train: Run, data: Path, config: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(data)
    check(train(config), words, data)


def test_there_are_many() -> None:
    tables = (ARGUMENTS, CONFIGS, OPTIONS, ANNOTATIONS, METRICS, FILES)
    assert sum(map(len, tables)) >= 60
