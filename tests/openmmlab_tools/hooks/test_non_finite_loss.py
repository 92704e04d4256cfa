"""A classifier of two numbers, trained on images that say what goes wrong with them."""
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.logging import MMLogger
from mmengine.model import BaseModel
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from openmmlab_tools.errors import UserError
from tests.helpers import refusal

NAN, INF, STEEP = float('nan'), float('inf'), 7


class Model(BaseModel):
    """Two losses, `loss_a` and `loss_b`; the input's second number is a factor of the latter.

    For STEEP, losses are finite, but not the gradient. Infinity may stay in the buffer.
    """

    def __init__(self, scale: float = 1.) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        nn.init.constant_(self.layer.weight, scale)
        self.register_buffer('buffer', torch.tensor([INF, -INF, 1.]))

    def forward(self, inputs: list[Tensor], data_samples: list[BaseDataElement], mode: str) -> dict:
        x = torch.stack(inputs)
        y = self.layer(x[:, :1])
        loss_b = y * x[:, 1:]
        if STEEP in x:
            loss_b.register_hook(lambda gradient: gradient * NAN)
        return dict(loss_a=y.square(), loss_b=loss_b, acc=x[:, 1] * NAN)


def runner(folder: Path, numbers: list[float], model: Model | None = None, interval: int = 100, images: str = '{}.jpg',
           patience: int = 3, accumulative_counts: int = 1,
           sampler: object = dict(type='DefaultSampler', shuffle=False), **loop: int) -> Runner:
    """A runner whose iteration i gets an image `<i>.jpg` with the i-th number; an epoch is a pass over the images."""
    data = [dict(inputs=torch.tensor([1., number]),
                 data_samples=BaseDataElement(metainfo=dict(img_path=images.format(i))))
            for i, number in enumerate(numbers, 1)]
    loader = dict(batch_size=1, num_workers=0, dataset=data, sampler=sampler)
    by_epoch = 'max_epochs' in loop
    validation = dict(val_dataloader=loader, val_cfg=dict(),
                      val_evaluator=dict(type='DumpResults', out_file_path=f'{folder}/v.pkl'))
    optimizer = dict(type='AdamW', lr=0.1)
    return Runner(
        model or Model(), str(folder), loader, experiment_name=f'{folder}', log_level='WARNING',
        train_cfg=dict(by_epoch=by_epoch, **({} if by_epoch else dict(max_iters=len(numbers))), **loop),
        optim_wrapper=dict(type='OptimWrapper', optimizer=optimizer, accumulative_counts=accumulative_counts),
        **(validation if 'val_interval' in loop else {}),
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=interval, max_keep_ckpts=1),
            non_finite_loss=dict(type='openmmlab_tools.NonFiniteLossHook', patience=patience)))


def weight(folder: Path, iteration: int) -> Tensor:
    return torch.load(folder / f'iter_{iteration}.pth', weights_only=False)['state_dict']['layer.weight']


def test_stops_after_several_bad_iterations_and_names_loss_and_image(tmp_path: Path) -> None:
    assert refusal(runner(tmp_path, [1, 1, 1, NAN, INF, NAN, 1], interval=3).train) == (
        'Training has stopped: in iteration 6 loss_b is nan (image 6.jpg), the last of 3 such iterations in a row; the '
        f'last checkpoint, {tmp_path}/iter_3.pth, is from before: lower the learning rate and start again (--resume '
        'keeps the old rate), or look at the images and their annotations.')
    assert (tmp_path / 'last_checkpoint').read_text() == f'{tmp_path}/iter_3.pth'
    assert [path.name for path in tmp_path.glob('*.pth')] == ['iter_3.pth']


class ModelWithNorm(Model):
    """Its norm sees the number."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, inputs: list[Tensor], data_samples: list[BaseDataElement], mode: str) -> dict:
        y = self.norm(self.layer(torch.stack(inputs)[:, 1:].repeat(2, 1)))
        return dict(loss_a=y.mean(), loss_b=y.square().mean())


class BlowsUp(Model):
    """Its weight is infinite after the iteration with the number 2, of which losses and gradient are finite."""

    def train_step(self, data: dict, optim_wrapper: OptimWrapper) -> dict:
        outputs = super().train_step(data, optim_wrapper)
        if (torch.stack(data['inputs'])[:, 1] == 2).any():
            nn.init.constant_(self.layer.weight, INF)
        return {name: value.item() for name, value in outputs.items()}  # which need not be tensors


THREE = dict(accumulative_counts=3)
NO_LONGER_FINITE = 'Training has stopped: layer.weight of the model is not finite; no checkpoint'


@pytest.mark.parametrize('model, numbers, options, reason', [
    (Model, [INF, 1], dict(patience=1), 'in iteration 1 loss_b is inf (image 1.jpg), the last of 1 such'),
    (Model, [1, STEEP, STEEP, STEEP, 1], {}, 'in iteration 4 losses are finite but the gradient is not (image 4.jpg)'),
    # While gradients accumulate, each bad batch counts once; the update of the first three is left out because of one.
    # In the other run there is an update in between.
    (Model, [NAN, 1, 1, NAN, 1, 1, 1, NAN, 1], THREE, '8 loss_b is nan (image 8.jpg), the last of 3'),
    (Model, [1, NAN, NAN, 1, 1, 1, NAN, NAN, NAN], THREE, '9 loss_b is nan (image 9.jpg), the last of 3'),
    # At once.
    (ModelWithNorm, [1, NAN, 1], {}, 'in iteration 2 loss_a is nan and loss_b is nan (image 2.jpg), so that '
     'norm.running_mean of the model is not finite; no checkpoint had been saved'),
    # Before a checkpoint, a validation, and at the end of an epoch.
    (BlowsUp, [1, 2, 1], dict(interval=2), NO_LONGER_FINITE),
    (BlowsUp, [1, 2, 1], dict(val_interval=2), NO_LONGER_FINITE),
    (BlowsUp, [1, 2], dict(max_epochs=2), NO_LONGER_FINITE),
    (partial(Model, INF), [1], {}, 'before the first iteration, layer.weight of the model is not finite')])
def test_what_stops_training(model: Callable[[], Model], numbers: list, options: dict, reason: str, tmp_path: Path
                             ) -> None:
    assert reason in refusal(runner(tmp_path, numbers, model(), **options).train)
    assert not list(tmp_path.glob('*.pth'))


@pytest.mark.parametrize('loop, bad, warnings', [
    ({}, [1, 2, NAN, INF, 3, NAN, 1], [(1, 3, 'nan'), (2, 4, 'inf'), (1, 6, 'nan')]),
    # What is saved in a bad iteration is the model before it.
    (dict(max_epochs=1), [1, 1, 1, NAN], [(1, 4, 'nan')])])
def test_a_bad_batch_passes_with_a_warning_and_leaves_nothing_behind(
        loop: dict, bad: list[float], warnings: list[tuple[int, int, str]], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(MMLogger, 'warning', lambda self, message, *args: said.append(message))
    actual = []
    for numbers in (bad, good := [number for number in bad if math.isfinite(number)]):
        torch.manual_seed(0)
        runner(folder := tmp_path / str(len(numbers)), numbers, interval=len(numbers), **loop).train()
        actual.append(weight(folder, len(numbers)))
    assert good and torch.equal(*actual)
    assert [message for message in said if message.startswith('Bad')] == [
        f'Bad iteration ({row} in a row, 3 end training): in iteration {i} loss_b is {value} (image {i}.jpg), and the '
        'update is not applied.' for row, i, value in warnings]


def test_with_a_loss_scale_only_losses_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = 'mmengine.optim.optimizer.amp_optimizer_wrapper'
    monkeypatch.setattr(f'{module}.is_cuda_available', lambda: True)
    monkeypatch.setattr(f'{module}.GradScaler', partial(torch.amp.GradScaler, 'cpu'))

    # A fused optimizer leaves updates out by itself: for the scaler, it makes them all.
    def scaled(folder: Path, numbers: list[float], init_scale: float = 64.) -> Runner:
        run = runner(folder, numbers, interval=5)
        run.optim_wrapper = AmpOptimWrapper(dict(init_scale=init_scale),
                                            optimizer=torch.optim.AdamW(run.model.parameters(), fused=True))
        return run

    run = scaled(tmp_path / 'gradients', [1, *[STEEP] * 4])
    run.train()
    assert run.optim_wrapper.loss_scaler.get_scale() == 64 / 2**4  # each of the bad gradients halves it
    assert weight(tmp_path / 'gradients', 5).isfinite()
    assert 'in iteration 4 loss_b is nan (image 4.jpg), the last of 3' in (
        refusal(scaled(tmp_path / 'losses', [1, NAN, NAN, NAN, 1]).train))
    # A scale of less than 1 does not help against overflow.
    assert 'in iteration 5 losses are finite but the gradient is not' in (
        refusal(scaled(tmp_path / 'scale', [1, *[STEEP] * 4], init_scale=2.).train))


def work(rank: int, folder: Path) -> None:
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    numbers = [1, 1, NAN, NAN, NAN, NAN] if rank else [1] * 6
    # Each has its own images.
    run = runner(folder, numbers, images=f'{rank}_{{}}.jpg', interval=2,
                 sampler=torch.utils.data.SequentialSampler(numbers))
    run.model = run.wrap_model(dict(type='MMDistributedDataParallel', device_ids=None), run.model)
    try:
        run.train()
    except (UserError, SystemExit) as error:
        (folder / f'{rank}.txt').write_text(f'{type(error).__name__}: {error}')
    (folder / f'{rank}.iter').write_text(str(run.iter + 1))
    dist.destroy_process_group()


@pytest.mark.slow
def test_all_processes_stop_together_with_one_message(tmp_path: Path) -> None:
    mp.spawn(work, (tmp_path,), nprocs=2)
    assert [(tmp_path / f'{rank}.iter').read_text() for rank in range(2)] == ['5', '5']
    assert (tmp_path / '0.txt').read_text().startswith(
        'UserError: Training has stopped: in iteration 5 loss_b is nan on rank 1 (image 1_5.jpg), the last of 3 such')
    assert (tmp_path / '1.txt').read_text() == 'SystemExit: 1'
    assert (tmp_path / 'last_checkpoint').read_text() == f'{tmp_path}/iter_4.pth'
