"""Every shipped classifier config has the recipe and decay keys that match; one of each family trains and predicts."""
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.optim import build_optim_wrapper

from cpvt_mm import engine
from cpvt_mm.engine import load_config, train
from cpvt_mm.errors import UserError
from tests.conftest import ROOT, build_model, groups_by_name

CONFIGS = {path.stem.removesuffix('_16xb64_in1k'): path for path in (ROOT / 'configs').glob('[!_]*/*_in1k.py')}
# A teacher that builds in no time.
TEACHER = dict(
    type='ImageClassifier',
    backbone=dict(type='ResNet', depth=18, stem_channels=8, base_channels=8),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=1000, in_channels=64))
SIZE = 64


@pytest.mark.parametrize('name', CONFIGS)
def test_the_recipe_is_deits(name: str) -> None:
    cfg = Config.fromfile(CONFIGS[name])
    pyramid = name == 'pyramid-cpvt-s'
    assert (cfg.optim_wrapper.optimizer.type, cfg.optim_wrapper.optimizer.lr) == ('AdamW', 5e-4 * 1024 / 512)
    assert cfg.optim_wrapper.optimizer.weight_decay == 0.05
    assert cfg.optim_wrapper.get('clip_grad') == (dict(max_norm=5.) if pyramid else None)
    assert cfg.train_cfg.max_epochs == 300
    warm_up, cosine = cfg.param_scheduler
    assert (warm_up.type, warm_up.begin, warm_up.end) == ('LinearLR', 0, 5)
    assert (cosine.type, cosine.begin, cosine.end) == ('CosineAnnealingLR', 5, 300)
    assert cfg.auto_scale_lr.base_batch_size == 16 * cfg.train_dataloader.batch_size == 1024
    assert cfg.train_dataloader.sampler.type == ('DefaultSampler' if pyramid else 'RepeatAugSampler')
    transforms = {transform.type: transform for transform in cfg.train_dataloader.dataset.pipeline}
    augment, erasing = transforms['RandAugment'], transforms['RandomErasing']
    assert (augment.num_policies, augment.magnitude_level, augment.magnitude_std) == (2, 9, 0.5)
    assert (erasing.erase_prob, erasing.mode) == (0.25, 'rand')
    assert cfg.model.train_cfg.augments == [dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.)]
    assert (cfg.model.head.loss.type, cfg.model.head.loss.label_smooth_val) == ('LabelSmoothLoss', 0.1)
    assert cfg.model.backbone.drop_path_rate == (0.2 if pyramid else 0.1)
    assert cfg.default_hooks.non_finite_loss == dict(type='cpvt_mm.NonFiniteLossHook')


@pytest.mark.parametrize('name', CONFIGS)
def test_only_weights_of_layers_decay(name: str) -> None:
    cfg = load_config(CONFIGS[name])
    model = build_model(cfg, 'meta')
    groups = groups_by_name(model, build_optim_wrapper(model, cfg.optim_wrapper))
    keys = list(cfg.optim_wrapper.paramwise_cfg.custom_keys)
    tokens = [name for name in ('cls_token', 'dist_token') if getattr(model.backbone, name, None) is not None]
    assert keys == ['position_encoding', *tokens]
    for key in keys:
        assert any(key in name for name in groups)
    for name, parameter in model.named_parameters():
        spared = parameter.ndim == 1 or any(key in name for key in keys)
        assert groups[name]['weight_decay'] == (0 if spared else 0.05), name


@pytest.fixture(scope='session')
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight images to train on and four to validate, of odd sizes, as mmpretrain wants ImageNet."""
    root = tmp_path_factory.mktemp('imagenet')
    generator = np.random.default_rng(0)
    (root / 'meta').mkdir()
    for split, number in dict(train=8, val=4).items():
        lines = []
        for i in range(number):
            folder = 'n01440764' if i % 2 else 'n15075141'
            image = f'{folder}/{split}_{i}.JPEG'
            (root / split / folder).mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(root / split / image), generator.integers(0, 256, (71 + i, 99 - i, 3), np.uint8))
            lines.append(f'{image} {0 if i % 2 else 999}')
        (root / 'meta' / f'{split}.txt').write_text('\n'.join(lines))
    return root


def cut_down(path: Path, imagenet: Path, work_dir: Path, **options: object) -> Config:
    """Leaves one epoch of two batches, at a small size and with a small teacher; no other change."""
    cfg = load_config(path, {'log_level': 'WARNING', 'default_hooks.logger.interval': 1, 'train_cfg.max_epochs': 1,
                             **options}, str(work_dir))
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(batch_size=4, num_workers=0, persistent_workers=False)
        loader.dataset.data_root = str(imagenet)
        for transform in loader.dataset.pipeline:
            small = dict(RandomResizedCrop=dict(scale=SIZE), ResizeEdge=dict(scale=SIZE + 8),
                         CenterCrop=dict(crop_size=SIZE))
            transform.update(small.get(transform.type, {}))
    if 'teacher' in cfg.model:
        cfg.model.teacher = TEACHER
    return cfg


@pytest.fixture
def teacher(tmp_path: Path) -> dict[str, str]:
    """The option that names a checkpoint of the teacher."""
    path = tmp_path / 'teacher.pth'
    torch.save(build_model(Config(dict(default_scope='mmpretrain', model=TEACHER))).state_dict(), path)
    return {'model.teacher_checkpoint': str(path)}


def train_and_test(name: str, imagenet: Path, folder: Path, losses: set[str], **options: str) -> None:
    """Trains an epoch, and tests its checkpoint without options."""
    train(cut_down(CONFIGS[name], imagenet, folder, **options))
    scalars = MessageHub.get_current_instance().log_scalars
    assert {key for key in scalars if 'loss' in key} == losses
    assert all(torch.tensor(scalars[key].current()).isfinite() for key in losses)
    assert 0 <= scalars['val/accuracy/top5'].current() <= 100
    metrics = engine.test(cut_down(CONFIGS[name], imagenet, folder), folder / 'epoch_1.pth', folder / 'painted')
    assert metrics['accuracy/top5'] == scalars['val/accuracy/top5'].current()
    assert {path.name for path in (folder / 'painted').iterdir()} == {f'val_{i}.png' for i in range(4)}


@pytest.mark.slow
@pytest.mark.parametrize('name', ['cpvt-ti', 'pyramid-cpvt-s'])
def test_trains_validates_and_tests(name: str, imagenet: Path, tmp_path: Path) -> None:
    train_and_test(name, imagenet, tmp_path, {'train/loss'})


@pytest.mark.slow
def test_a_distilled_student_is_tested_and_resumed_from_a_checkpoint_of_its_own(
        imagenet: Path, teacher: dict[str, str], tmp_path: Path) -> None:
    name, losses = 'cpvt-ti-distilled', {'train/loss', 'train/loss_cls', 'train/loss_distill'}
    train_and_test(name, imagenet, tmp_path, losses, **teacher)  # tests without a teacher
    weights = torch.load(tmp_path / 'epoch_1.pth', weights_only=True)['state_dict']
    assert {name.split('.')[0] for name in weights} == {'backbone', 'head'}
    train(cut_down(CONFIGS[name], imagenet, tmp_path, **teacher, **{'train_cfg.max_epochs': 2}), resume='auto')
    assert MessageHub.get_current_instance().get_info('epoch') == 1  # counted from 0
    assert (tmp_path / 'epoch_2.pth').exists()


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_training(imagenet: Path, tmp_path: Path) -> None:
    options = {'model.head.loss.loss_weight': 1e39, 'train_cfg.max_epochs': 2, 'train_cfg.val_interval': 9}
    with pytest.raises(UserError, match=r'in iteration 3 loss is inf \(images .*\.JPEG\), the last of 3 such'):
        train(cut_down(CONFIGS['cpvt-ti-gap'], imagenet, tmp_path, **options))
    assert not (tmp_path / 'last_checkpoint').exists()


@pytest.mark.slow
def test_no_training_without_the_teachers_weights(imagenet: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'model\.teacher_checkpoint is not set'):
        train(cut_down(CONFIGS['cpvt-ti-distilled'], imagenet, tmp_path))
