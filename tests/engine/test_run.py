import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.runner import Runner

from cpvt_mm import engine
from cpvt_mm.engine import load_config, train
from cpvt_mm.engine.run import full_disk_as_user_error
from cpvt_mm.errors import UserError
from cpvt_mm.weights.reading import read_checkpoint
from tests.conftest import MASK_RCNN, UPERNET, Trained, toy_overrides

TrainConfig = Callable[..., Config]


@pytest.fixture
def upernet(toy_shapes: Path) -> TrainConfig:

    def load(work_dir: Path, iters: int, **options: object) -> Config:
        steps = {'train_cfg.max_iters': iters, 'train_cfg.val_interval': 100, 'default_hooks.checkpoint.interval': 2}
        return load_config(UPERNET, toy_overrides(toy_shapes, **steps, **options), str(work_dir))

    return load


def weights(path: Path) -> dict:
    return read_checkpoint(path)['state_dict']


def test_resume_equals_an_uninterrupted_run(upernet: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                            ) -> None:
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    train(upernet(whole, 4))
    train(upernet(parts, 2))
    assert not (parts / 'iter_4.pth').exists()
    read, load = [], torch.load
    monkeypatch.setattr(torch, 'load', lambda *args, **settings: read.append(args) or load(*args, **settings))
    train(upernet(parts, 4), resume='auto')
    assert len(read) == 2  # by us and by mmengine
    assert MessageHub.get_current_instance().get_info('iter') == 3  # counted from 0
    first, second = (weights(folder / 'iter_4.pth') for folder in (whole, parts))
    assert first
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    changed = [name for name, value in weights(parts / 'iter_2.pth').items() if not torch.equal(value, second[name])]
    assert len(changed) > 100


@pytest.mark.slow
def test_resume_keeps_a_seed_that_the_config_leaves_open(upernet: TrainConfig, tmp_path: Path) -> None:
    train(upernet(tmp_path, 2, randomness=dict(seed=None)))
    seed = read_checkpoint(tmp_path / 'iter_2.pth')['meta']['seed']
    # As where the config says it, not the caller.
    cfg = upernet(tmp_path, 3, randomness=dict(seed=None), resume=True)
    train(cfg)
    assert cfg.randomness.seed == seed == read_checkpoint(tmp_path / 'iter_3.pth')['meta']['seed']


@pytest.mark.slow
def test_resume_from_a_run_of_plain_mmengine_or_of_another_seed_says_so(upernet: TrainConfig, tmp_path: Path) -> None:
    path = tmp_path / 'old.pth'
    train(upernet(tmp_path, 2))

    def log() -> str:
        return ''.join(file.read_text() for file in tmp_path.glob('new/*/*.log'))

    train(upernet(tmp_path / 'new', 3), resume=str(tmp_path / 'iter_2.pth'))
    assert 'results may differ' not in log()
    train(upernet(tmp_path / 'new', 3, randomness=dict(seed=5)), resume=str(tmp_path / 'iter_2.pth'))
    assert log().count('the order of the data is that of seed 5') == log().count('results may differ') == 1
    checkpoint = read_checkpoint(tmp_path / 'iter_2.pth')
    del checkpoint['meta']['seeded_each_iteration']
    scalars = checkpoint['message_hub']['log_scalars']
    scalars.update({name: HistoryBuffer(value['log_history'].numpy(), value['count_history'].numpy())
                    for name, value in scalars.items()})
    torch.save(checkpoint, path)
    train(upernet(tmp_path / 'new', 3), resume=str(path))
    assert log().count('from a run without a seed for each iteration') == 1 and log().count('results may differ') == 2
    rates = read_checkpoint(tmp_path / 'new/iter_3.pth')['message_hub']['log_scalars']['train/lr']['log_history']
    assert len(rates) == 3


@pytest.mark.slow
def test_resume_from_a_named_checkpoint_and_from_none(upernet: TrainConfig, tmp_path: Path) -> None:
    train(upernet(tmp_path / 'a', 2), resume='auto')  # there is none: from the beginning
    train(upernet(tmp_path / 'b', 4), resume=str(tmp_path / 'a/iter_2.pth'))
    assert (tmp_path / 'b/iter_4.pth').exists()


@pytest.mark.slow
def test_resume_refuses_a_checkpoint_of_another_model(upernet: TrainConfig, tmp_path: Path) -> None:
    train(upernet(tmp_path, 2))
    with pytest.raises(UserError, match=r'iter_2\.pth does not fit the model.* of another shape'):
        train(upernet(tmp_path, 4, **{'model.decode_head.channels': 32}), resume='auto')


@pytest.mark.parametrize('config, metric', [
    (UPERNET, 'mIoU'), pytest.param(MASK_RCNN, 'coco/bbox_mAP', marks=pytest.mark.slow)])
def test_testing_gives_metrics_and_paints_every_image(config: Path, metric: str, toy_shapes: Path, tmp_path: Path
                                                      ) -> None:
    options = toy_overrides(toy_shapes, **{'train_cfg.max_iters': 1, 'train_cfg.val_interval': 100})
    if config is MASK_RCNN:
        annotations = f'{toy_shapes}/instances_validation.json'
        options |= {'val_evaluator.ann_file': annotations, 'test_evaluator.ann_file': annotations,
                    'model.test_cfg.rcnn.score_thr': 0.}
    train(load_config(config, options, str(tmp_path)))
    metrics = engine.test(load_config(config, options, str(tmp_path)), tmp_path / 'iter_1.pth', tmp_path / 'painted')
    assert 0 <= metrics[metric] <= 100
    painted = {path.name: cv2.imread(str(path)).shape for path in (tmp_path / 'painted').iterdir()}
    images = {f'{path.stem}.png': cv2.imread(str(path)).shape
              for path in (toy_shapes / 'images/validation').iterdir()}
    # The ground truth on the left, the prediction right.
    assert painted == {name: (height, 2 * width, 3) for name, (height, width, _) in images.items()}


@pytest.mark.slow
def test_auto_scale_lr_needs_and_uses_the_base(upernet: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'--auto-scale-lr needs auto_scale_lr\.base_batch_size'):
        train(upernet(tmp_path, 1), auto_scale_lr=True)
    cfg = upernet(tmp_path, 1, auto_scale_lr=dict(enable=False, base_batch_size=8), param_scheduler=None)
    train(cfg, auto_scale_lr=True)
    learning_rate = MessageHub.get_current_instance().get_scalar('train/lr').current()
    assert learning_rate == pytest.approx(1e-3 * 2 / 8)


@pytest.mark.skipif(torch.cuda.is_available(), reason='tells what happens without a GPU')
def test_amp_without_a_gpu_is_refused(upernet: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'Mixed precision needs a GPU, .*: leave out --amp'):
        train(upernet(tmp_path, 1), amp=True)


class Watch(Hook):
    """Notes the batches of each epoch, and looks at one after each, as mmpretrain's PreciseBNHook does."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, bool]] = []

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        last = self.end_of_epoch(runner.train_dataloader, batch_idx)
        self.seen.append((runner.iter, runner.epoch, batch_idx, last))

    def after_train_epoch(self, runner: Runner) -> None:
        next(iter(runner.train_dataloader))


def in_epochs(data: Path, work_dir: Path) -> Config:
    """Two epochs of three iterations, with a learning rate by epoch and checkpoints by iteration."""
    cfg = load_config(UPERNET, toy_overrides(data, **{
        'train_dataloader.dataset.indices': 6, 'train_dataloader.sampler.type': 'DefaultSampler',
        'train_dataloader.dataset.pipeline.2.scale': (64, 64), 'model.backbone.drop_path_rate': 0.3,
        'default_hooks.checkpoint.interval': 2, 'default_hooks.checkpoint.by_epoch': False,
        'default_hooks.checkpoint.max_keep_ckpts': -1}), str(work_dir))
    cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=2)
    cfg.param_scheduler = [dict(type='MultiStepLR', by_epoch=True, milestones=[1])]
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    return cfg


@pytest.fixture(scope='module')
def epochs(toy_shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work dir of such a run without interruption."""
    folder = tmp_path_factory.mktemp('epochs')
    train(in_epochs(toy_shapes, folder), hooks=[Watch()])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('step', [2, 4, 6])  # in an epoch, and at the end of one and of all
def test_epochs_go_on_at_a_checkpoint_by_iteration(step: int, toy_shapes: Path, epochs: Path, tmp_path: Path) -> None:
    hook = Watch()
    train(in_epochs(toy_shapes, tmp_path), resume=str(epochs / f'iter_{step}.pth'), hooks=[hook])
    assert hook.seen == [(index, index // 3, index % 3, index % 3 == 2) for index in range(step, 6)]
    if step == 6:
        return
    first, second = (read_checkpoint(folder / 'iter_6.pth') for folder in (epochs, tmp_path))
    torch.testing.assert_close(first['state_dict'], second['state_dict'], rtol=0, atol=0)
    rates = [one['message_hub']['log_scalars']['train/lr']['log_history'].tolist() for one in (first, second)]
    assert rates[0] == rates[1] and len(set(rates[0])) == 2


def test_a_test_leaves_the_config_of_the_training_alone(trained: dict[str, Trained], toy_shapes: Path) -> None:
    config, checkpoint = trained['mmseg']
    before = config.read_text()
    cfg = load_config(UPERNET, toy_overrides(toy_shapes, test_pipeline=[]), str(config.parent))
    assert 0 <= engine.test(cfg, checkpoint)['mIoU'] <= 100
    with pytest.raises(UserError, match=r'no\.pth'):
        engine.test(load_config(UPERNET, toy_overrides(toy_shapes), str(config.parent)), 'no.pth')
    assert config.read_text() == before and list(config.parent.glob('*.py')) == [config]


class FailsInIteration(Hook):

    def __init__(self, number: int) -> None:
        self.number = number

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        if runner.iter == self.number:
            raise RuntimeError('no more')


def test_what_fails_in_the_first_iteration_is_told_in_a_sentence(upernet: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        train(upernet(tmp_path, 3), hooks=[FailsInIteration(0)])
    traceback = tmp_path / 'traceback.txt'
    assert str(error.value) == ('training cannot begin (RuntimeError: no more): correct the config, or see the '
                                f'traceback in {traceback}.')
    assert 'in before_train_iter' in traceback.read_text()


def test_what_fails_later_passes(upernet: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match='no more'):
        train(upernet(tmp_path, 3), hooks=[FailsInIteration(1)])


DISK_FULL = OSError(errno.ENOSPC, 'No space left on device', 'a.log')


def test_what_to_go_on_from_is_named(tmp_path: Path) -> None:
    (tmp_path / 'last_checkpoint').write_text('iter_2.pth')
    sentence = 'a.log cannot be written (No space left on device): free space for it, then continue from iter_2.pth'
    with pytest.raises(UserError, match=re.escape(sentence)), full_disk_as_user_error(str(tmp_path), resumable=True):
        raise DISK_FULL


def test_a_full_disk_without_a_name_may_be_shared_memory(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised, full_disk_as_user_error(str(tmp_path), resumable=True):
        raise OSError(errno.ENOSPC, 'No space left on device')  # as a lock of multiprocessing raises it
    assert str(raised.value) == (
        f'A disk is full (No space left on device): free space in {tmp_path} or in /dev/shm (the shared '
        'memory of data loader workers), whichever it is, then start again.')


def test_without_a_way_to_resume_none_is_named(tmp_path: Path) -> None:
    (tmp_path / 'last_checkpoint').write_text('iter_2.pth')
    with pytest.raises(UserError, match='then start again'), full_disk_as_user_error(str(tmp_path), resumable=False):
        raise DISK_FULL


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), full_disk_as_user_error(str(tmp_path), resumable=True):
        raise PermissionError
