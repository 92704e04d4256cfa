"""Two processes train as one does on the batch of both."""
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from torch import nn

from cpvt_mm.engine import load_config
from tests.conftest import UPERNET

VARIANTS = {
    'as shipped': {},
    'frozen and recomputed': {'model.backbone.frozen_stages': 1, 'model.backbone.with_cp': True},
}


def build(options: dict) -> nn.Module:
    options = {**options, 'model.decode_head.dropout_ratio': 0., 'model.auxiliary_head.dropout_ratio': 0.}
    cfg = load_config(UPERNET, options)
    init_default_scope('mmseg')
    torch.manual_seed(0)
    return MODELS.build(cfg.model).train()


def batch(images: slice) -> dict:
    from mmseg.structures import SegDataSample
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (4, 3, 64, 96), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 6, (4, 1, 64, 96), generator=generator)
    samples = [SegDataSample(gt_sem_seg=PixelData(data=label), metainfo=dict(img_shape=(64, 96))) for label in labels]
    return dict(inputs=list(inputs[images]), data_samples=samples[images])


def gradients(model: nn.Module, data: dict) -> dict[str, torch.Tensor]:
    wrapped = isinstance(model, MMDistributedDataParallel)
    inner = model.module if wrapped else model
    data = inner.data_preprocessor(data, training=True)
    losses = model(**data, mode='loss')
    inner.parse_losses(losses)[0].backward()
    return {name: p.grad for name, p in inner.named_parameters() if p.grad is not None}


def work(rank: int, folder: Path, options: dict) -> None:
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    model = MMDistributedDataParallel(build(options), find_unused_parameters=False)
    torch.save(gradients(model, batch(slice(2 * rank, 2 * rank + 2))), folder / f'{rank}.pth')
    dist.destroy_process_group()


@pytest.mark.parametrize('options', VARIANTS.values(), ids=VARIANTS)
def test_two_processes_give_the_gradients_of_one(options: dict, tmp_path: Path) -> None:
    mp.spawn(work, (tmp_path, options), nprocs=2)
    expected = gradients(build(options), batch(slice(0, 4)))
    assert sum(g.abs().max() > 1e-5 for g in expected.values()) > 100
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f'{rank}.pth', weights_only=True), expected,
                                   atol=1e-5, rtol=1e-3)
