"""Training in processes with a GPU each, through the runner and NCCL; on a CPU with gloo."""
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from cpvt_mm.engine import load_config, train
from tests.conftest import UPERNET, toy_overrides
from tests.engine.test_process_group import Watch

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def work(rank: int, folder: Path, data: Path, number: int, port: int) -> None:
    """Trains two iterations as one of several processes of a launcher, and notes what happened."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(number), MASTER_ADDR='127.0.0.1',
                      MASTER_PORT=str(port))
    options = toy_overrides(data, **{
        'train_cfg.max_iters': 2, 'train_cfg.val_interval': 100, 'train_dataloader.dataset.pipeline.2.scale': (64, 64),
        'val_dataloader.dataset.pipeline.1.scale': (64, 64)})
    cfg = load_config(UPERNET, options, str(folder / 'work'), 'pytorch')
    watch = Watch()
    train(cfg, hooks=[watch])
    weights = {name: weight.cpu() for name, weight in watch.weights.items()}
    devices = sorted({str(weight.device) for weight in watch.weights.values()})
    torch.save(dict(weights=weights, images=watch.images, is_wrapped=watch.is_wrapped, devices=devices,
                    backend=torch.distributed.get_backend()), folder / f'{rank}.pth')


@pytest.mark.parametrize('all_gpus', [False, True])
def test_each_trains_on_its_share_and_all_have_the_same_weights(all_gpus: bool, device: torch.device, toy_shapes: Path,
                                                               tmp_path: Path) -> None:
    number = 1 if not all_gpus else torch.cuda.device_count() if device.type == 'cuda' else 2
    if all_gpus and number == 1:
        pytest.skip('there is one GPU only')
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        port = listener.getsockname()[1]
    mp.spawn(work, (tmp_path, toy_shapes, number, port), nprocs=number)
    found = [torch.load(tmp_path / f'{rank}.pth', weights_only=True) for rank in range(number)]
    for rank, one in enumerate(found):
        assert one['is_wrapped']
        assert one['backend'] == ('nccl' if device.type == 'cuda' else 'gloo')
        assert one['devices'] == [f'cuda:{rank}' if device.type == 'cuda' else 'cpu']
        assert all(torch.equal(weight, found[0]['weights'][name]) for name, weight in one['weights'].items())
    images = [image for one in found for image in one['images']]
    assert len(images) == 4 * number
    if number <= 2:  # as many images as there are in all
        assert len(set(images)) == len(images)
