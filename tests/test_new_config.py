"""Configs for folders of data: what the config says, what is refused, what the command prints, and that it trains."""
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.optim import build_optim_wrapper
from PIL import Image

from cpvt_mm import create_backbone
from cpvt_mm import new_config as writing
from cpvt_mm.new_config import new_config
from cpvt_mm.swap import swap_backbone
from openmmlab_data.fitted_model import is_for_cpu
from openmmlab_data.measuring import suggest
from openmmlab_data.readers.layouts import ReadingOptions
from openmmlab_data.readers.own_data import find_data
from openmmlab_runs.checkpoints.reading import read_checkpoint
from openmmlab_runs.engine import load_config, train
from tests.conftest import MASK_RCNN, ROOT, build_model, groups_by_name, refusal
from tests.openmmlab_data.layouts import PIXELS, XML, coco, dataset, loaded, maps, voc, voc_flat, yolo, yolo_polygons
from tests.tools.conftest import Run, change_annotations, cut, save

NO_WORKERS = {f'{split}_dataloader.{key}': value for split in ('train', 'val')
              for key, value in (('num_workers', 0), ('persistent_workers', False))}


def label_maps(root: Path, labels: tuple[int, ...] = (0, 2, 255)) -> None:
    maps('{1}/images/{0}.png', '{1}/masks/{0}_mask.png', lambda name: np.resize(np.uint8(labels), (60, 80)))(root)


def made(source: Path, out: Path, *args: Any, **kwargs: Any) -> tuple[Config, list[str]]:
    """Writes a config and reads it; of arch nano, which has no weights to fetch, unless another is given."""
    arch = {} if {'arch', 'base'} & kwargs.keys() or len(args) > 1 else dict(arch='nano')
    lines = new_config(source, out, *args, **arch, **kwargs)
    return load_config(out, NO_WORKERS, str(out.with_suffix(''))), lines


def test_colours_of_a_palette_are_kept(tmp_path: Path) -> None:
    label_maps(tmp_path / 'data', (0, 1))
    for path in (tmp_path / 'data').glob('*/masks/*.png'):
        image = Image.fromarray(np.asarray(Image.open(path)), 'P')
        image.putpalette([0, 0, 0, 200, 100, 50])
        image.save(path)
    assert loaded(find_data(tmp_path / 'data'), tmp_path / 'out')['train'].metainfo['palette'] == [
        (0, 0, 0), (200, 100, 50)]


@pytest.mark.parametrize('semantic', [False, True])
def test_a_share_for_validation_depends_on_the_seed_only(semantic: bool, data: Path) -> None:
    (data / 'instances_validation.json').unlink()
    for folder in ('images', 'annotations'):
        shutil.rmtree(data / folder / 'validation')
    found = []
    for seed in (0, 0, 1):
        own = find_data(data, ReadingOptions(semantic), '0.25', seed)
        names = [{one.path for one in own.splits[split]} for split in ('train', 'val')]
        assert list(map(len, names)) == [6, 2] and len(names[0] | names[1]) == 8
        found.append(names)
    assert found[0] == found[1] != found[2] and any('it gets 2 images' in line for line in own.notes)


def test_validation_may_be_another_file_or_folder(data: Path, tmp_path: Path) -> None:
    source = data / 'instances_training.json'
    for name in ('instances_validation.json', 'other.json'):
        (data / 'instances_validation.json').rename(data / name)
        found = find_data(source, val=str(data / name))
        assert {split: len(own) for split, own in found.splits.items()} == dict(train=8, val=4)
    voc(tmp_path / 'boxes')
    voc(tmp_path / 'more', xml=XML.replace('{}', 'dog'))
    assert 'name data of the same kind' in refusal(find_data, source, val=str(tmp_path / 'boxes'))
    assert refusal(find_data, tmp_path / 'boxes', val='0.5') == (
        f'val is 0.5, a share of the images, but {tmp_path}/boxes has a split for validation: leave it out, or name a '
        'folder or file.')
    shutil.rmtree(tmp_path / 'more/ImageSets')
    found = loaded(find_data(tmp_path / 'boxes', val=str(tmp_path / 'more')), tmp_path / 'out')['val']
    assert {found.get_data_info(index)['instances'][0]['bbox_label'] for index in range(4)} == {1}


@pytest.mark.parametrize('factor', [1, 3])
def test_anchors_follow_the_boxes(factor: int, data: Path, tmp_path: Path) -> None:
    """All boxes are three times as wide as high."""
    for split in ('training', 'validation'):
        change_annotations(data / f'instances_{split}.json', lambda coco: [
            one.update(bbox=[0, 0, 24 * factor, 8 * factor], area=192) for one in coco['annotations']])
    cfg, _ = made(data, tmp_path / 'a.py', 'boxes', scale=(160, 160))
    anchors = cfg.model.rpn_head.anchor_generator
    low, high = min(anchors.scales) * 4, max(anchors.scales) * 32
    size = factor * np.sqrt(24 * 8)
    assert low <= size * 1.7 and high >= size and low > factor * 6
    assert anchors.ratios == pytest.approx([1 / 3] * 3, abs=0.01)


def test_images_of_varied_sizes_are_cropped(tmp_path: Path) -> None:
    voc_flat(tmp_path / 'data')
    save(tmp_path / 'data/train/a.png', np.zeros((600, 900, 3), np.uint8))
    (tmp_path / 'data/train/b.xml').write_text(XML.format('dog').replace('30', '20').replace('50', '30'))
    cfg, lines = made(tmp_path / 'data', tmp_path / 'my.py')
    assert any(line.startswith('Images keep their sizes') for line in lines)
    assert cfg.train_dataloader.dataset.pipeline[2] == dict(type='RandomCrop', crop_size=(480, 480))
    assert dataset(cfg, 'val')[0]['inputs'].shape == (3, 60, 80)
    # Cut images have several sizes: each gets the features that it gets alone.
    assert (cfg.model.data_preprocessor.type, cfg.model.backbone.padding) == ('cpvt_mm.DetDataPreprocessor', 'exact')


def test_a_schedule_follows_its_length(tmp_path: Path) -> None:
    for option, value in (('iters', 0), ('batch', -1), ('scale', (0, 9)), ('early_stop', 0)):
        assert f'{option} is ' in refusal(new_config, tmp_path, tmp_path / 'my.py', **{option: value})
    voc(tmp_path / 'data')
    (tmp_path / 'data/ImageSets/Main/train.txt').write_text('a\n')
    cfg, lines = made(tmp_path / 'data', tmp_path / 'my.py', iters=2000, batch=3)
    warm_up, cosine = cfg.param_scheduler
    assert (warm_up.end, cosine.begin, cosine.end, cosine.T_max) == (250, 250, 2000, 1750)
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval, cfg.train_dataloader.batch_size) == (2000, 500, 3)
    assert cfg.default_hooks.checkpoint.interval == 500
    assert len(dataset(cfg, 'train')) == 1 and any('1 images are in no list of a split' in line for line in lines)


@pytest.mark.parametrize('arch, iters, batch, longest', [('nano', 400, 4, 480), ('tiny', 8000, 8, 1333)])
def test_schedule_and_sizes_are_for_the_backbone_that_is_swapped_in(
        arch: str, iters: int, batch: int, longest: int, data: Path, tmp_path: Path) -> None:
    """All images have 1600 x 1200 pixels, and objects that stay large."""
    def enlarge(coco: dict[str, Any]) -> None:
        for one in coco['images']:
            one.update(width=1600, height=1200)
            Image.new('RGB', (1600, 1200)).save(data / 'images' / split / one['file_name'])
        for one in coco['annotations']:
            one.update(bbox=[9, 9, 900, 900], area=810_000)

    for split in ('training', 'validation'):
        change_annotations(data / f'instances_{split}.json', enlarge)
    base = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
    cfg, _ = made(data, tmp_path / 'my.py', 'boxes', base=base, swap=partial(swap_backbone, arch=arch))
    assert (cfg.train_cfg.max_iters, cfg.train_dataloader.batch_size) == (iters, batch)
    assert max(cfg.scale) == max(suggest(cfg, [find_data(data / 'instances_training.json')])['scale'])
    assert max(cfg.scale) == longest
    assert is_for_cpu(dict(detector=cfg.model)) == (arch == 'nano')


@pytest.mark.slow
@pytest.mark.parametrize('base, arch, head', [
    ('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', 'small', 'bbox_head'),
    ('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', None, 'bbox_head'), (None, 'base', 'roi_head')])
def test_the_model_may_be_of_another_config_or_arch(base: str | None, arch: str | None, head: str, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, 'size_of', lambda url: 96_000_000)
    voc(tmp_path / 'data')
    cfg, lines = made(tmp_path / 'data', tmp_path / 'my.py', arch=arch, base=base)
    backbone, parts = cfg.model.backbone, cfg.model[head]
    assert backbone.get('arch') == arch and (backbone.type == 'ResNet') == (arch is None)
    assert backbone.get('padding') == ('exact' if arch else None)
    assert parts.get('bbox_head', parts).num_classes == 2
    if arch:
        assert backbone.init_cfg.checkpoint == f'cpvt_mm://pyramid-cpvt-{arch}'
        assert any(f'{arch}, weights from ImageNet (96 MB)' in line for line in lines)
    assert cfg.train_cfg.max_iters == 8000
    build_model(cfg, 'meta')


@pytest.mark.parametrize('write, task', [(voc, 'boxes'), (yolo_polygons, 'instances'), (label_maps, 'semantic')])
def test_without_options_it_starts_from_the_smallest_weights_of_imagenet(write: Callable[[Path], object], task: str,
                                                                        tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, 'size_of', lambda url: 14_000_000)
    write(tmp_path / 'data')
    cfg, lines = made(tmp_path / 'data', tmp_path / 'my.py', task, None)
    assert cfg.model.backbone.init_cfg.checkpoint == 'cpvt_mm://pvtv2-b0' and cfg.train_cfg.max_iters == 400
    assert any('from cpvt_mm://pvtv2-b0, weights from ImageNet (14 MB)' in line for line in lines)
    model = build_model(cfg, 'meta')
    with torch.device('meta'):
        assert model.backbone.state_dict().keys() == create_backbone('pvtv2-b0').state_dict().keys()
    rates = {name: group['lr'] for name, group in groups_by_name(
        model, build_optim_wrapper(model, cfg.optim_wrapper)).items()}
    assert {rates[name] / cfg.optim_wrapper.optimizer.lr for name in rates if name.startswith('backbone.')} == {0.1}
    cfg, lines = made(tmp_path / 'data', tmp_path / 'random.py', task, None, random_weights=True)
    assert cfg.model.backbone.init_cfg is None and cfg.model.backbone.arch == 'pvtv2-b0'
    assert cfg.optim_wrapper.paramwise_cfg.custom_keys.backbone.lr_mult == 1
    assert any(line == 'The backbone starts from random weights, as you asked.' for line in lines)


@pytest.mark.parametrize('arch', [None, 'small', 'mit-b0'])
def test_without_the_net_random_weights_must_be_asked_for(arch: str | None, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    voc(tmp_path / 'data')
    monkeypatch.setattr(writing, 'size_of', lambda url: None)
    told = refusal(made, tmp_path / 'data', tmp_path / 'my.py', arch=arch)
    assert 'since the net does not answer: download https://' in told and '--random-weights' in told
    assert not (tmp_path / 'my.py').exists() and not (tmp_path / 'my_annotations').exists()
    cfg, _ = made(tmp_path / 'data', tmp_path / 'my.py', arch=arch, random_weights=True)
    assert cfg.model.backbone.init_cfg is None and cfg.model.backbone.arch == (arch or 'pvtv2-b0')


def changed(write: Callable[[Path], object], *changes: Callable[[Path], object]) -> Callable[[Path], None]:
    return lambda root: [call(root) for call in (write, *changes)] and None


def twice(root: Path) -> None:
    coco(root)
    shutil.copy(root / 'annotations/instances_train2017.json', root / 'annotations/train.json')
    (root / 'annotations/instances_train2017.json').rename(root / 'annotations/train_2.json')


@pytest.mark.parametrize('write, words', [
    (lambda root: None, 'does not exist'), (lambda root: root.mkdir(), 'is empty'),
    (changed(voc, lambda root: shutil.rmtree(root / 'Annotations')), 'has 4 images, but no annotations of them'),
    (changed(voc, yolo), 'has Pascal VOC and YOLO: name'),
    (changed(yolo, lambda root: (root / 'images/train/a.jpg').write_bytes(b'')), 'images/train/a.jpg cannot be read'),
    (changed(label_maps, lambda root: cut(root / 'train/masks/a_mask.png')), 'a_mask.png cannot be read'),
    (changed(label_maps, lambda root: save(root / 'train/masks/a_mask.png', PIXELS)), 'name one with --col'),
    (lambda root: label_maps(root, (255,)), 'with the values  and perhaps 255'),
    (lambda root: yolo(root, '7 0.2 0.2 0.1 0.1'), "a.txt has '7 0.2 0.2 0.1 0.1' in line 1, but "),
    (lambda root: yolo(root, '0 0.2 0.2 nan 1'), 'in line 1, but a line is'),
    (lambda root: yolo(root, '10000000 0.2 0.2 1 1', description=''), 'but YOLO here has 10000 names'),
    (lambda root: yolo(root, ''), 'has no annotation to train on'), (twice, 'are both for train: name one')])
def test_what_cannot_be_used_is_told(write: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    write(tmp_path / 'data')
    assert words in refusal(find_data, tmp_path / 'data')


@pytest.mark.parametrize('name', ['my.py', 'my_annotations'])
def test_no_file_is_overwritten_and_none_is_left(name: str, tmp_path: Path) -> None:
    voc(tmp_path / 'data', xml=XML.replace('<name>', '<name>a').replace('<xmax>30', '<xmax>x'))
    assert "has 'x' for xmax" in refusal(new_config, tmp_path / 'data', tmp_path / 'my.py')
    assert [path.name for path in tmp_path.iterdir()] == ['data']
    (tmp_path / name).write_text('mine')
    assert f'{name} exists already' in refusal(new_config, tmp_path / 'data', tmp_path / 'my.py')
    assert (tmp_path / name).read_text() == 'mine' and len(list(tmp_path.iterdir())) == 2


def test_a_model_for_boxes_takes_the_boxes_of_masks_and_one_for_masks_needs_masks(data: Path, tmp_path: Path) -> None:
    base = ROOT / 'configs/boxes/retinanet_pyramid-cpvt-nano_fpn_boxes.py'
    cfg, _ = made(data, tmp_path / 'my.py', base=str(base))
    assert cfg.val_evaluator.metric == 'bbox' and cfg.model.bbox_head.num_classes == 5
    voc(tmp_path / 'data of boxes')
    for task, base, words in (('instances', None, 'has Pascal VOC for boxes, but the task is instances'),
                              (None, MASK_RCNN, 'has Pascal VOC for boxes, but the task is instances'),
                              ('boxes', MASK_RCNN, 'the model is for instances, but the task is boxes')):
        assert words in refusal(
            new_config, tmp_path / 'data of boxes', tmp_path / 'no.py', task, base=base and str(base))


@pytest.mark.slow
@pytest.mark.parametrize('write', [voc, yolo_polygons, label_maps])
def test_the_config_trains(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / 'data')
    new_config(tmp_path / 'data', tmp_path / 'my.py', arch='nano', iters=2, batch=2)
    train(load_config(tmp_path / 'my.py', {'log_level': 'WARNING'}, str(tmp_path / 'run')))
    scalars = MessageHub.get_current_instance().log_scalars
    assert np.isfinite(scalars['train/loss'].current())
    assert {'val/coco/bbox_mAP', 'val/mIoU'} & set(scalars)
    assert (tmp_path / 'run/iter_2.pth').exists() and list((tmp_path / 'run').glob('best_*.pth'))


def test_a_folder_with_a_model_is_a_start_and_excludes_random_weights(data: Path, tmp_path: Path) -> None:
    nuclei = str(ROOT / 'demo/nuclei')
    cfg, lines = made(data, tmp_path / 'my.py', 'instances', base=nuclei)
    assert cfg.load_from == f'{nuclei}/model.safetensors' and cfg.train_cfg.max_iters == 400
    assert cfg.model.roi_head.mask_head.num_classes == 5 and any('The model starts from' in line for line in lines)
    assert 'model.safetensors: leave --random-weights out' in refusal(
        made, data, tmp_path / 'no.py', 'instances', base=nuclei, random_weights=True)
    cfg, _ = made(data, tmp_path / 'other.py', 'boxes', base='mmdet::retinanet/retinanet_r50_fpn_1x_coco.py',
                  random_weights=True)
    assert cfg.model.backbone.init_cfg is None


def test_hooks_are_those_that_are_asked_for(data: Path, tmp_path: Path) -> None:
    plain, _ = made(data, tmp_path / 'plain.py', 'semantic', iters=4000)
    assert not {'ema', 'early_stopping'} & plain.default_hooks.keys() and plain.val_interval == 1000
    both, _ = made(data, tmp_path / 'both.py', 'boxes', iters=4000, early_stop=3, ema=True)
    assert both.val_interval == 200  # validations that can end the training early
    assert both.default_hooks.early_stopping == dict(
        type='EarlyStoppingHook', monitor='coco/bbox_mAP', patience=3, rule='greater', min_delta=0.001)
    assert both.default_hooks.ema == dict(type='EMAHook', momentum=20 / 4000)
    stops, _ = made(data, tmp_path / 'maps.py', 'semantic', early_stop=1)
    assert stops.default_hooks.early_stopping.min_delta == 0.1  # percent
    for options in (dict(early_stop=1), dict(ema=True)):
        assert 'both.py has an E' in refusal(
            new_config, data, tmp_path / 'twice.py', 'boxes', base=str(tmp_path / 'both.py'), **options)


def test_a_measured_batch_is_a_number_in_the_config(data: Path, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(cfg: Config, default: int) -> tuple[int, str]:
        assert default == cfg.train_dataloader.batch_size == 4
        return 16, 'It is 16.'

    monkeypatch.setattr('cpvt_mm.new_config.choose_batch', measure)
    assert new_config(data, tmp_path / 'my.py', 'semantic', 'nano', batch='auto')[-1] == 'It is 16.'
    assert load_config(tmp_path / 'my.py').train_dataloader.batch_size == 16


@pytest.mark.slow
def test_training_stops_early_and_goes_on_with_averaged_weights(data: Path, tmp_path: Path,
                                                                capsys: pytest.CaptureFixture) -> None:
    """Nothing is better by 1000 percent, so the second of four validations ends the training."""
    def run(name: str, patience: int, resume: str | None = None) -> str:
        cfg = load_config(tmp_path / 'my.py', {
            **NO_WORKERS, 'randomness': dict(seed=3), 'train_cfg.val_interval': 2,
            'default_hooks.checkpoint.interval': 2,
            'default_hooks.early_stopping': dict(patience=patience, min_delta=1000.)}, str(tmp_path / name))
        train(cfg, resume=resume)
        return capsys.readouterr().out

    made(data, tmp_path / 'my.py', 'semantic', scale=(64, 64), iters=8, batch=2, early_stop=1, ema=True)
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


def test_the_command_prints_what_was_read_and_its_faults(run_tool: Run, data: Path, tmp_path: Path,
                                                           capsys: pytest.CaptureFixture) -> None:
    out, file = tmp_path / 'my.py', data / 'instances_training.json'
    change_annotations(file, lambda coco: coco['annotations'][0].update(bbox=[500, 500, 9, 9]))
    assert run_tool('misc/new_config.py', data, out, '--task', 'boxes', '--arch', 'nano', '--scale', 96, 64, '--iters',
                    40, '--batch', 2) == ''
    lines = capsys.readouterr().out.splitlines()
    fault = f'error, box outside of its image, or without area: {tmp_path}/my_annotations/train.json has bbox'
    assert f'{data} has COCO annotations.' in lines and any(fault in line for line in lines)
    assert lines[-1] == f'Wrote {out}. Next: cpvt_mm train {out}'
    assert (tmp_path / 'my_annotations/samples.png').exists()
    cfg = load_config(out)
    assert (cfg.scale, cfg.max_iters, cfg.batch_size) == ((96, 64), 40, 2)
    with pytest.raises(TypeError, match='no_such_option'):
        new_config(data, out, no_such_option=1)
