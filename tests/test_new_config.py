"""Configs for folders of data: what the config says, what is refused, and that it trains."""
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.optim import build_optim_wrapper
from PIL import Image

from cpvt_mm import create_backbone
from cpvt_mm import data_config as writing
from cpvt_mm.data_config import new_config
from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.engine import load_config, train
from openmmlab_tools.readers.own_data import find_data
from tests.backbones import MASK_RCNN
from tests.helpers import ROOT, build_model, groups_by_name, refusal
from tests.made_configs import made
from tests.openmmlab_tools.readers import layouts
from tests.openmmlab_tools.readers.layouts import (
    PIXELS,
    XML,
    Write,
    dataset,
    loaded,
    maps,
    text,
    voc,
    yolo,
    yolo_polygons,
)
from tests.tools.conftest import cut, save, times

RETINANET, NUCLEI = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', str(ROOT / 'demo/nuclei')
NANO = str(ROOT / 'configs/boxes/retinanet_pyramid-cpvt-nano_fpn_boxes.py')


def label_maps(root: Path, labels: tuple[int, ...] = (0, 2, 255)) -> None:
    maps('{1}/images/{0}.png', '{1}/masks/{0}_mask.png', lambda name: np.resize(np.uint8(labels), (60, 80)))(root)


def changed(write: Write, *changes: Callable[[Path], object]) -> Write:
    return lambda root: [call(root) for call in (write, *changes)] and None


def large(root: Path) -> None:
    """Images of 1600 x 1200 pixels, with objects that stay large."""
    voc(root, xml=XML.replace('80', '1600').replace('60', '1200').replace('30', '900').replace('50', '900'))
    for path in root.rglob('*.jpg'):
        Image.new('RGB', (1600, 1200)).save(path)


def varied(root: Path) -> None:
    layouts.voc_flat(root)
    save(root / 'train/a.png', np.zeros((600, 900, 3), np.uint8))
    text(root / 'train/b.xml', XML.format(name='dog').replace('30', '20').replace('50', '30'))


def flat(factor: int) -> Write:
    """All boxes are three times as wide as high."""
    return partial(yolo, line=f'{{label}} 0.5 0.5 {24 * factor / 80} {8 * factor / 60}')


def value(cfg: Any, key: str) -> Any:
    for part in key.split('.'):
        cfg = cfg[int(part)] if part.isdigit() else cfg.get(part)
    return cfg


STOPPING, ANCHORS = 'default_hooks.early_stopping', 'model.rpn_head.anchor_generator'
# Each image of a batch gets the features that it gets alone.
EXACT = {'model.data_preprocessor.type': 'cpvt_mm.DetDataPreprocessor', 'model.backbone.padding': 'exact'}


@pytest.mark.parametrize('write, options, expected, told', [
    (changed(voc, lambda root: text(root / 'ImageSets/Main/train.txt', 'a\n')), dict(iters=2000, batch=3), {
        'param_scheduler.0.end': 250, 'param_scheduler.1.begin': 250, 'param_scheduler.1.end': 2000,
        'param_scheduler.1.T_max': 1750, 'train_cfg.max_iters': 2000, 'train_cfg.val_interval': 500,
        'train_dataloader.batch_size': 3, 'default_hooks.checkpoint.interval': 500,
        'auto_scale_lr': dict(enable=False, base_batch_size=3)},
     '1 images are in no list of a split'),
    (varied, {}, {'train_dataloader.dataset.pipeline.2': dict(
        type='RandomCrop', crop_size=(480, 480), allow_negative_crop=True),
                  'val_dataloader.dataset.pipeline.1.scale_factor': 1., **EXACT},
     "Therefore the config sets padding='exact'"),
    *((flat(factor), dict(scale=(80, 60)), {f'{ANCHORS}.scales': [scale], f'{ANCHORS}.ratios': [0.33] * 3}, '')
      for factor, scale in ((1, 3.5), (3, 10.4))),  # of the stride, 4
    # Schedule and sizes are for the backbone that is swapped in.
    *((large, dict(base=RETINANET, arch=arch), {
        'model.backbone.arch': arch, 'scale': scale, 'train_cfg.max_iters': iters, 'train_dataloader.batch_size': batch
        }, '') for arch, scale, iters, batch in (('nano', (480, 360), 400, 4), ('tiny', (1333, 1000), 8000, 8))),
    # The model and the learning rate, for 16 images, are those of another config.
    (voc, dict(base=RETINANET), {'model.backbone.type': 'ResNet', 'model.backbone.padding': None,
                                 'model.bbox_head.num_classes': 2, 'train_cfg.max_iters': 8000,
                                 'auto_scale_lr.base_batch_size': 16,
                                 'val_evaluator.type': 'CocoMetric', 'val_evaluator.proposal_nums': None}, ''),
    (voc, dict(base='mmdet::gfl/gfl_r50_fpn_1x_coco.py'), {  # its head has one anchor in each cell
        'model.bbox_head.anchor_generator.ratios': [1.0], 'model.bbox_head.num_classes': 2}, ''),
    (voc, dict(base=RETINANET, random_weights=True), {'model.backbone.init_cfg': None}, ''),
    (voc, dict(base=RETINANET, arch='small'), {
        'model.backbone.arch': 'small', 'model.backbone.init_cfg.checkpoint': 'cpvt_mm://pyramid-cpvt-small',
        'model.bbox_head.num_classes': 2, 'model.backbone.padding': None,
        'auto_scale_lr.base_batch_size': 16, 'optim_wrapper.optimizer.lr': 2e-4,
        'model.data_preprocessor.type': 'DetDataPreprocessor'}, 'About 0% of the pixels in a batch of 8 are padding.'),
    (yolo_polygons, dict(base=NANO), {'val_evaluator.metric': 'bbox', 'model.bbox_head.num_classes': 2}, ''),
    (yolo_polygons, dict(base=NUCLEI), {'load_from': f'{NUCLEI}/model.safetensors', 'train_cfg.max_iters': 400,
                                        'model.roi_head.mask_head.num_classes': 2,
                                        'test_evaluator.type': 'openmmlab_tools.CocoMetric',
                                        'test_evaluator.proposal_nums': (1, 10, 500)}, 'The model starts from'),
    # Hooks are those that are asked for. There are more validations if they can end the training.
    (label_maps, dict(iters=4000), {STOPPING: None, 'default_hooks.ema': None, 'val_interval': 1000}, ''),
    (voc, dict(iters=4000, early_stop=3, ema=True), {
        'val_interval': 200, 'default_hooks.ema': dict(type='EMAHook', momentum=20 / 4000), STOPPING: dict(
            type='EarlyStoppingHook', monitor='coco/bbox_mAP', patience=3, rule='greater', min_delta=0.001)}, ''),
    (label_maps, dict(early_stop=1), {f'{STOPPING}.min_delta': 0.1}, ''),  # percent
    # The fourth validation is the first that could end the training with 3, and is not the last one.
    *((voc, dict(early_stop=number, iters=iters), {}, told) for number, iters, told in (
        (3, 499, '--early-stop 3 cannot end this training early: it has 4 validations, and could stop at number 4 at '
         'the earliest. To change this, pass --iters 500 or more.'), (3, 500, ''), (18, 2000, ''),
        (19, 2000, 'it has 20 validations, and could stop at number 20 at the earliest. To change this, pass a number '
         'below 19.')))])
def test_a_config_is_what_was_asked_for(write: Write, options: dict[str, Any], expected: dict[str, Any], told: str,
                                        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, 'size_of', lambda url: 14_000_000)
    cfg, lines = made(write, tmp_path, **options)
    assert {key: value(cfg, key) for key in expected} == expected and told in '\n'.join(lines)
    assert ('cannot end this training early' in '\n'.join(lines)) == ('number below' in told or '--early-stop' in told)
    build_model(cfg, 'meta')
    assert dataset(cfg, 'val')[0]['inputs'].ndim == 3


@pytest.mark.parametrize('write, task', [(voc, 'boxes'), (yolo_polygons, 'instances'), (label_maps, 'semantic')])
def test_nano_starts_from_weights_of_the_package_unless_random_ones_are_asked_for(write: Write, task: str,
                                                                                  tmp_path: Path) -> None:
    write(tmp_path / 'data')
    cfg, lines = made(None, tmp_path, task, 'nano')
    assert 'cpvt_mm://pyramid-cpvt-nano (4 MB, under the Apache License 2.0; the images' in '\n'.join(lines)
    model = build_model(cfg)
    model.init_weights()
    weights = create_backbone('pyramid-cpvt-nano', pretrained=True).state_dict()
    assert weights.keys() == model.backbone.state_dict().keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.backbone.state_dict().items())
    cfg, lines = made(None, tmp_path, task, 'nano', out='random.py', random_weights=True)
    assert cfg.model.backbone.get('init_cfg') is None and 'from random weights, because you' in '\n'.join(lines)


@pytest.mark.parametrize('write, task, arch', [
    (voc, 'boxes', None), (yolo_polygons, 'instances', None), (label_maps, 'semantic', None),
    (voc, 'boxes', 'mit-b0')])
def test_the_start_are_weights_of_imagenet_unless_random_ones_are_asked_for(
        write: Write, task: str, arch: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / 'data')
    monkeypatch.setattr(writing, 'size_of', lambda url: None)
    told = refusal(new_config, tmp_path / 'data', tmp_path / 'my.py', task, arch)
    assert 'because the internet does not answer. Download https://' in told and '--random-weights' in told
    assert [path.name for path in tmp_path.iterdir()] == ['data']
    monkeypatch.setattr(writing, 'size_of', lambda url: 14_000_000)
    cfg, lines = made(None, tmp_path, task, arch)
    address = cfg.model.backbone.init_cfg.checkpoint
    assert address == f'cpvt_mm://{arch or "pvtv2-b0"}'
    assert f'from the ImageNet weights {address} (14 MB' in '\n'.join(lines)
    assert cfg.train_cfg.max_iters == (8000 if arch else 400)
    model = build_model(cfg, 'meta')
    with torch.device('meta'):
        assert model.backbone.state_dict().keys() == create_backbone(address.partition('//')[2]).state_dict().keys()
    groups = groups_by_name(model, build_optim_wrapper(model, cfg.optim_wrapper))
    rate = cfg.optim_wrapper.optimizer.lr
    assert {groups[name]['lr'] / rate for name in groups if name.startswith('backbone.')} == {1. if arch else 0.1}
    cfg, lines = made(None, tmp_path, task, arch, out='random.py', random_weights=True)
    assert cfg.model.backbone.init_cfg is None and cfg.model.backbone.arch == (arch or 'pvtv2-b0')
    assert arch or cfg.optim_wrapper.paramwise_cfg.custom_keys.backbone.lr_mult == 1
    assert 'The backbone starts from random weights, because you passed --random-weights.' in lines


def twice(root: Path) -> None:
    layouts.coco(root)
    shutil.copy(root / 'annotations/instances_train2017.json', root / 'annotations/train.json')
    (root / 'annotations/instances_train2017.json').rename(root / 'annotations/train_2.json')


def with_averages(root: Path) -> None:
    voc(root)
    text(root / 'both.py', f"_base_ = {NANO!r}\ndefault_hooks = dict(a=dict(type='EMAHook'))\n"
         "custom_hooks = [dict(type='EarlyStoppingHook', monitor='x')]\n")


@pytest.mark.parametrize('write, options, words', [
    (lambda root: None, {}, 'does not exist'), (lambda root: root.mkdir(), {}, 'is empty'),
    (changed(voc, lambda root: shutil.rmtree(root / 'Annotations')), {}, 'has 4 images, but no annotations of them'),
    (changed(voc, yolo), {}, 'has Pascal VOC (Annotations/a.xml) and YOLO (labels/train/a.txt). Pass'),
    (changed(yolo, lambda root: (root / 'images/train/a.jpg').write_bytes(b'')), {}, 'train/a.jpg cannot be read'),
    (changed(label_maps, lambda root: cut(root / 'train/masks/a_mask.png')), {}, 'a_mask.png cannot be read'),
    (changed(label_maps, lambda root: save(root / 'train/masks/a_mask.png', PIXELS)), {}, 'pass one with --col'),
    (partial(label_maps, labels=(255,)), {}, 'with the values 255. Classes must'),
    (partial(yolo, line='7 0.2 0.2 0.1 0.1'), {}, "a.txt has '7 0.2 0.2 0.1 0.1' in line 1, but "),
    (partial(yolo, line='0 0.2 0.2 nan 1'), {}, 'in line 1, but a line must'),
    (partial(yolo, line='10000000 0.2 0.2 1 1', description=''), {}, 'but YOLO here has 10000 names'),
    (partial(yolo, line=''), {}, 'has no annotation to train on'), (twice, {}, 'are both for train: pass one'),
    (partial(voc, xml=XML.replace('<name>', '<name>a').replace('<xmax>30', '<xmax>x')), {}, "has 'x' for xmax"),
    (changed(voc, lambda root: text(root.with_name('my.py'), 'mine')), {}, 'my.py exists already'),
    (changed(voc, lambda root: root.with_name('my_annotations').mkdir()), {}, 'my_annotations exists already'),
    *((voc, {option: number}, f'{option} is ') for option, number in (
        ('iters', 0), ('batch', -1), ('scale', (0, 9)), ('early_stop', 0))),
    (voc, dict(task='instances'), 'has Pascal VOC for boxes, but the task is instances'),
    (voc, dict(base=str(MASK_RCNN)), 'has Pascal VOC for boxes, but the task is instances'),
    (voc, dict(task='boxes', base=str(MASK_RCNN)), 'the model is for instances, but the task is boxes'),
    (voc, dict(val='0.5'), 'data already has a split for validation: leave val out, or pass a folder or file.'),
    (yolo_polygons, dict(base=NUCLEI, random_weights=True), 'model.safetensors: leave --random-weights out'),
    *((with_averages, {option: number, 'base': 'data/both.py'}, f'both.py already has an {hook}: leave {option} out')
      for option, number, hook in (('early_stop', 1, 'EarlyStoppingHook'), ('ema', True, 'EMAHook')))])
def test_what_cannot_be_used_is_told_and_no_file_is_written(
        write: Write, options: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / 'data')
    before = times(tmp_path)
    assert words in refusal(new_config, Path('data'), 'my.py', **options)
    assert times(tmp_path) == before


def test_colours_of_a_palette_are_kept(tmp_path: Path) -> None:
    label_maps(tmp_path / 'data', (0, 1))
    for path in (tmp_path / 'data').glob('*/masks/*.png'):
        image = Image.fromarray(np.asarray(Image.open(path)), 'P')
        image.putpalette([0, 0, 0, 200, 100, 50])
        image.save(path)
    assert loaded(find_data(tmp_path / 'data'), tmp_path / 'out')['train'].metainfo['palette'] == [
        (0, 0, 0), (200, 100, 50)]


@pytest.mark.parametrize('write', [partial(yolo, places=('images', 'labels')), maps('images/{0}.jpg', 'masks/{0}.png')])
def test_a_share_for_validation_depends_on_the_seed_only(write: Write, tmp_path: Path) -> None:
    write(tmp_path)
    chosen = []
    for seed in (0, 0, 1, 2, 3):
        data = find_data(tmp_path, val='0.25', seed=seed)
        training, validation = ([one.path for one in data.splits[split]] for split in ('train', 'val'))
        assert (len(training), len({*training, *validation})) == (3, 4) and (
            'so 1 of the training images are used for validation' in str(data.notes))
        chosen += validation
    assert len(chosen) == 5 and chosen[0] == chosen[1] and len({*chosen}) > 1


def test_validation_may_be_another_file_or_folder(data: Path, tmp_path: Path) -> None:
    source = data / 'instances_training.json'
    for name in ('instances_validation.json', 'other.json'):
        (data / 'instances_validation.json').rename(data / name)
        actual = find_data(source, val=str(data / name))
        assert {split: len(own) for split, own in actual.splits.items()} == dict(train=8, val=4)
    voc(tmp_path / 'boxes')
    voc(tmp_path / 'more', xml=XML.replace('{name}', 'dog'))
    assert 'pass labels of the same kind' in refusal(find_data, source, val=str(tmp_path / 'boxes'))
    shutil.rmtree(tmp_path / 'more/ImageSets')
    own = loaded(find_data(tmp_path / 'boxes', val=str(tmp_path / 'more')), tmp_path / 'out')['val']
    assert {own.get_data_info(index)['instances'][0]['bbox_label'] for index in range(4)} == {1}


@pytest.mark.slow
def test_training_stops_early_and_goes_on_with_averaged_weights(data: Path, tmp_path: Path,
                                                                capsys: pytest.CaptureFixture) -> None:
    """Nothing is better by 1000 percent, so the second of four validations ends the training."""
    def run(name: str, patience: int, resume: str | None = None) -> str:
        cfg = load_config(tmp_path / 'my.py', {
            **layouts.NO_WORKERS, 'randomness': dict(seed=3), 'train_cfg.val_interval': 2,
            'default_hooks.checkpoint.interval': 2,
            'default_hooks.early_stopping': dict(patience=patience, min_delta=1000.)}, str(tmp_path / name))
        train(cfg, resume=resume)
        return capsys.readouterr().out

    new_config(data, tmp_path / 'my.py', 'semantic', 'nano', (64, 64), iters=8, batch=2, early_stop=1, ema=True)
    printed = run('stopped', 1)
    assert 'Training stops early, after iteration 4 of 8, because of mIoU' in printed
    assert f'--resume continues from {tmp_path}/stopped/iter_4.pth' in printed
    assert 'Training stops early' not in run('stopped', 9, resume='auto') + run('whole', 9)
    first, second = (read_checkpoint(tmp_path / name / 'iter_8.pth') for name in ('stopped', 'whole'))
    for part in ('state_dict', 'ema_state_dict', 'optimizer'):
        torch.testing.assert_close(first[part], second[part], rtol=0, atol=0)
    # What a prediction loads is the average, which differs from the weights that are trained.
    name = next(name for name in first['state_dict'] if name.endswith('conv_seg.weight'))
    assert not torch.equal(first['state_dict'][name], first['ema_state_dict'][f'module.{name}'])
    [best] = (tmp_path / 'whole').glob('best_*.pth')
    assert re.search('iter_[2468]', best.name) and 'ema_state_dict' in read_checkpoint(best)
