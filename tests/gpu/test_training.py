"""Steps of training through the runner, in mixed precision; resuming; a process a GPU (on a CPU with gloo)."""
import math
import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner

from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.engine import load_config, train
from openmmlab_tools.errors import UserError
from tests.backbones import MASK_RCNN, UPERNET
from tests.helpers import ROOT, toy_overrides
from tests.processes import free_port

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

RETINANET = ROOT / 'configs/pyramid_cpvt/retinanet_pyramid-cpvt-t_fpn_1x_coco.py'


def config(name: str, data: Path, work_dir: Path, iterations: int, launcher: str = 'none', **more: Any) -> Config:
    """A model of toy size that sees two images of 64 px an iteration, in mixed precision."""
    options = toy_overrides(data, **{
        'train_cfg.max_iters': iterations, 'train_cfg.val_interval': 100, 'model.backbone.drop_path_rate': 0.2,
        'train_dataloader.dataset.pipeline.2.scale': (64, 64), 'val_dataloader.dataset.pipeline.1.scale': (64, 64),
        'optim_wrapper.type': 'AmpOptimWrapper', **more})
    if name != 'upernet':
        options['val_evaluator.ann_file'] = options['test_evaluator.ann_file'] = f'{data}/instances_validation.json'
    cfg = load_config(UPERNET if name == 'upernet' else MASK_RCNN, options, str(work_dir), launcher)
    if name == 'retinanet':
        detector = Config.fromfile(RETINANET).model
        detector.backbone.arch = 'nano'
        detector.neck.update(in_channels=[32, 64, 128, 192])
        detector.bbox_head.num_classes = 5
        cfg.model = detector
        cfg.val_evaluator.metric = cfg.test_evaluator.metric = 'bbox'
    return cfg


@pytest.fixture(autouse=True)
def amp(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, lets mmengine's AmpOptimWrapper train, too: with its loss scale, but in float32.

    mmcv has no nms of bfloat16 there, and oneDNN's gradient of a convolution in bfloat16 is NaN now and then.
    """
    if device.type == 'cpu':
        module = 'mmengine.optim.optimizer.amp_optimizer_wrapper'
        monkeypatch.setattr(f'{module}.is_cuda_available', lambda: True)
        monkeypatch.setattr(f'{module}.GradScaler', partial(torch.amp.GradScaler, 'cpu'))
        monkeypatch.setattr('mmengine.runner.amp.autocast', lambda **_: nullcontext())
        monkeypatch.setattr('openmmlab_tools.engine.steps.check_precision', lambda *_: None)


class Watch(Hook):
    """Notes what a process trains; may spoil the images from an iteration on."""

    def __init__(self, spoil_from: float = math.inf) -> None:
        self.spoil_from = spoil_from
        self.losses, self.scales, self.images = [], [], []

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        self.is_wrapped = is_model_wrapper(runner.model)  # which averages gradients
        if runner.iter >= self.spoil_from:
            data_batch['inputs'] = [torch.full_like(image, math.nan, dtype=torch.float) for image in
                                    data_batch['inputs']]

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.losses.append(outputs['loss'].item())
        self.images += [Path(sample.img_path).name for sample in data_batch['data_samples']]
        self.weights = runner.model.state_dict()
        if scaler := getattr(runner.optim_wrapper, 'loss_scaler', None):
            self.scales.append(scaler.get_scale())


@pytest.mark.parametrize('name', ['upernet', 'retinanet', 'mask-rcnn'])
def test_steps_in_mixed_precision(name: str, device: torch.device, toy_shapes: Path, tmp_path: Path) -> None:
    watch = Watch()
    scale = {'optim_wrapper.loss_scale': dict(init_scale=1024., growth_interval=2)}
    train(config(name, toy_shapes, tmp_path, 4, **scale), hooks=[watch])
    assert {weight.device for weight in watch.weights.values()} == {device}
    assert len(watch.losses) == 4 and all(map(math.isfinite, watch.losses))
    assert watch.scales == [1024., 2048., 2048., 4096.]  # no gradient was dropped
    state = read_checkpoint(tmp_path / 'iter_4.pth')['state_dict']
    assert all(value.isfinite().all() for value in state.values())


def test_losses_that_are_not_finite_end_training(toy_shapes: Path, tmp_path: Path) -> None:
    watch = Watch(spoil_from=2)
    with pytest.raises(UserError, match=r'in iteration 5 .* is nan .*the last of 3 such iterations in a row'):
        train(config('upernet', toy_shapes, tmp_path, 8), hooks=[watch])
    assert len(watch.losses) == 5
    assert not list(tmp_path.glob('*.pth'))


def test_a_resumed_run_ends_as_a_whole_one(toy_shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, of RetinaNet: all its kernels have a deterministic form (others: docs/results/what_was_tested.md)."""
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':4096:8')  # cuBLAS wants it
    randomness = {'randomness.deterministic': True, 'default_hooks.checkpoint.interval': 2}
    try:
        train(config('retinanet', toy_shapes, tmp_path / 'whole', 4, **randomness))
        train(config('retinanet', toy_shapes, tmp_path / 'parts', 2, **randomness))
        train(config('retinanet', toy_shapes, tmp_path / 'parts', 4, **randomness), resume='auto')
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
    whole, parts = (read_checkpoint(tmp_path / name / 'iter_4.pth') for name in ('whole', 'parts'))
    assert whole['state_dict'].keys() == parts['state_dict'].keys()
    assert [name for name, value in whole['state_dict'].items() if not torch.equal(value, parts['state_dict'][name])
            ] == []
    first = read_checkpoint(tmp_path / 'whole/iter_2.pth')['state_dict']
    assert any(not torch.equal(value, first[name]) for name, value in whole['state_dict'].items())


def work(rank: int, folder: Path, data: Path, number: int, port: int) -> None:
    """Trains two iterations as one of several processes of a launcher, and notes what happened."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(number), MASTER_ADDR='127.0.0.1',
                      MASTER_PORT=str(port))
    watch = Watch()
    train(config('upernet', data, folder / 'work', 2, 'pytorch', **{'optim_wrapper.type': 'OptimWrapper'}),
          hooks=[watch])
    torch.save(dict(weights={name: weight.cpu() for name, weight in watch.weights.items()}, images=watch.images,
                    is_wrapped=watch.is_wrapped, devices=sorted({str(weight.device) for weight in
                                                                 watch.weights.values()}),
                    backend=torch.distributed.get_backend()), folder / f'{rank}.pth')


@pytest.mark.parametrize('all_gpus', [False, True])
def test_all_have_the_same_weights(all_gpus: bool, device: torch.device, toy_shapes: Path, tmp_path: Path) -> None:
    number = 1 if not all_gpus else torch.cuda.device_count() if device.type == 'cuda' else 2
    if all_gpus and number == 1:
        pytest.skip('there is one GPU only')
    port = free_port()
    mp.spawn(work, (tmp_path, toy_shapes, number, port), nprocs=number)
    actual = [torch.load(tmp_path / f'{rank}.pth', weights_only=True) for rank in range(number)]
    for rank, one in enumerate(actual):
        assert one['is_wrapped']
        assert one['backend'] == ('nccl' if device.type == 'cuda' else 'gloo')
        assert one['devices'] == [f'cuda:{rank}' if device.type == 'cuda' else 'cpu']
        assert all(torch.equal(weight, actual[0]['weights'][name]) for name, weight in one['weights'].items())
    images = [image for one in actual for image in one['images']]
    assert len(images) == 4 * number
    if number <= 2:  # as many images as there are in all
        assert len(set(images)) == len(images)
