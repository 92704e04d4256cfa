"""A model that is trained already stays as good: what it was trained with stays, and it is measured before training."""
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.runner import CheckpointLoader

from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.data.scales import KEY
from openmmlab_tools.engine import load_config, train
from openmmlab_tools.files import to_bytes, write_bytes
from tests.backbones import UPERNET
from tests.helpers import ROOT, Models, toy_overrides
from tests.made_configs import made
from tests.openmmlab_tools.readers.layouts import text, yolo_polygons
from tests.test_new_config import NUCLEI, label_maps

SAFE = f'{NUCLEI}/model.safetensors'


def config_with(root: Path, base: str, load_from: str) -> str:
    text(root / 'base.py', f'_base_ = {base!r}\nload_from = {load_from!r}\n')
    return str(root / 'base.py')


def backbone_of(root: Path) -> str:
    """Writes a checkpoint that has only the backbone of the detector."""
    weights = {name: one for name, one in read_checkpoint(SAFE)['state_dict'].items() if name.startswith('backbone.')}
    torch.save(weights, root / 'backbone.pth')
    return str(root / 'backbone.pth')


@pytest.mark.parametrize('base', [lambda root: NUCLEI, lambda root: config_with(root, f'{NUCLEI}/config.py', SAFE)],
                         ids=['folder', 'load_from of a config'])
def test_a_trained_model_keeps_anchors_and_sizes_and_learns_slowly(base: Callable[[Path], str], tmp_path: Path) -> None:
    cfg, lines = made(yolo_polygons, tmp_path, base=base(tmp_path), iters=40)
    old = load_config(f'{NUCLEI}/config.py')
    assert cfg.load_from == SAFE and cfg.model.rpn_head == old.model.rpn_head
    assert cfg.model.data_preprocessor == old.model.data_preprocessor
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(old.optim_wrapper.optimizer.lr / 10)
    for split in ('train', 'val', 'test'):
        [resize] = [one for one in cfg[f'{split}_dataloader'].dataset.pipeline if one.type == 'Resize']
        assert resize == dict(type='Resize', scale_factor=1.5, keep_ratio=True)
    assert cfg.default_hooks.validate_first.type == 'openmmlab_tools.ValidateFirstHook'
    [told] = [line for line in lines if 'already trained' in line]
    assert 'anchors and normalization are kept. Images are 1.5 times their size, as in its tests;' in told
    assert 'The learning rate is 0.0001, a tenth of 0.001.' in told


@pytest.mark.parametrize('options, expected', [
    (lambda root: dict(base=config_with(root, f'{NUCLEI}/config.py', backbone_of(root))), False),
    (lambda root: dict(base=f'{NUCLEI}/config.py'), False),
    (lambda root: dict(base=config_with(root, f'{NUCLEI}/config.py', SAFE), random_weights=True), False),
    (lambda root: dict(base=NUCLEI, scale=(80, 60)), True)],
    ids=['backbone alone', 'no weights', 'random', 'a scale that is asked for'])
def test_other_models_are_fitted_to_the_data(options: Callable[[Path], dict[str, Any]], expected: bool, tmp_path: Path
                                             ) -> None:
    cfg, _ = made(yolo_polygons, tmp_path, **options(tmp_path))
    assert ('validate_first' in cfg.default_hooks) == expected
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(1e-4 if expected else 1e-3)
    assert (cfg.model.rpn_head.anchor_generator.scales == [2]) == expected
    assert not any(one.get('scale_factor') == 1.5 for one in cfg.val_dataloader.dataset.pipeline)
    assert (cfg.load_from is None) == (not expected and 'backbone.pth' not in str(cfg.load_from))


def test_a_trained_segmentor_keeps_its_scale_and_crop(trained: Models, tmp_path: Path) -> None:
    config, checkpoint = trained['mmseg']
    cfg, lines = made(label_maps, tmp_path, base=config_with(tmp_path, str(config), str(checkpoint)))
    old = load_config(config)
    [scale] = [one.scale for one in old.test_dataloader.dataset.pipeline if one.type == 'Resize']
    assert tuple(cfg.scale) == tuple(scale) and cfg.model.data_preprocessor == old.model.data_preprocessor
    assert 'already trained' in '\n'.join(lines)


@pytest.mark.parametrize('kind', ['a.safetensors', 'bare.pth', 'parallel.pth'])
def test_the_first_validation_is_of_the_model_as_it_was_also_with_averages(
        kind: str, trained: Models, toy_shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    weights = read_checkpoint(trained['mmseg'].checkpoint)['state_dict']
    path = tmp_path / kind
    named = {f'module.{name}': weight for name, weight in weights.items()} if kind == 'parallel.pth' else weights
    write_bytes(path, to_bytes(named, kind.endswith('.safetensors'), {KEY: dict(size=[9, 9], scales=None)}))
    cfg = load_config(UPERNET, toy_overrides(toy_shapes, **{
        'train_cfg.max_iters': 1, 'train_cfg.val_interval': 100, 'optim_wrapper.optimizer.lr': 0.,
        'load_from': str(path), 'optim_wrapper.optimizer.weight_decay': 0., 'default_hooks.ema': dict(type='EMAHook'),
        'default_hooks.checkpoint.save_best': 'mIoU', 'log_level': 'INFO',
        'default_hooks.validate_first': dict(type='openmmlab_tools.ValidateFirstHook')}), str(tmp_path / 'work'))
    train(cfg)
    validations = json.loads((tmp_path / 'work/validations.json').read_text())
    assert [*validations] == ['0', '1']
    assert 'Validating before the first iteration' in capsys.readouterr().out
    best = read_checkpoint(tmp_path / 'work/best_mIoU_iter_0.pth')
    parameters = [name for name in weights if name.endswith('.weight') and 'num_batches' not in name]
    for name in parameters:
        assert torch.equal(best['state_dict'][name], weights[name]), name
        assert torch.equal(best['ema_state_dict'][f'module.{name}'], weights[name]), name
    if kind == 'a.safetensors':
        assert best['meta'][KEY] == dict(size=[9, 9], scales=None)


def test_a_resumed_run_does_not_validate_first(trained: Models, toy_shapes: Path, tmp_path: Path) -> None:
    cfg = load_config(UPERNET, toy_overrides(toy_shapes, **{
        'train_cfg.max_iters': 3, 'train_cfg.val_interval': 100, 'default_hooks.validate_first': dict(
            type='openmmlab_tools.ValidateFirstHook')}), str(tmp_path))
    train(cfg, resume=str(trained['mmseg'].checkpoint))
    assert [*json.loads((tmp_path / 'validations.json').read_text())] == ['3']


def test_mmengine_loads_safetensors_as_its_own_checkpoints(tmp_path: Path) -> None:
    write_bytes(tmp_path / 'a.safetensors', to_bytes(dict(a=torch.ones(1)), True))
    loaded = CheckpointLoader.load_checkpoint(str(tmp_path / 'a.safetensors'), 'cpu')
    assert loaded == dict(state_dict=dict(a=torch.ones(1)), meta={})


def test_the_detector_in_demo_tells_its_classes_and_the_scale_of_its_training() -> None:
    meta = read_checkpoint(SAFE)['meta']
    assert meta['dataset_meta']['classes'] == ['nucleus']
    scales = meta[KEY]['scales']
    assert meta[KEY]['size'] == [256, 256] and scales == pytest.approx([0.7, 1.5], rel=0.01)
    assert (ROOT / 'demo/nuclei/README.md').exists()
