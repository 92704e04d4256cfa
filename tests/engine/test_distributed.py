"""Two processes train as one does on the batch of both, without find_unused_parameters.

Gradients of two processes, each with two of four images, are those of one process with all four, where losses are means
over equally many items of each image: numbers of outputs (the bare backbones), or pixels, also ignored ones (UperNet).
mmdet's are means over samples that each process draws by itself; tests/configs/test_steps.py looks for parameters
without a gradient there. Models compute in float64; float32, a share of about 1e-7, stays where tables are resampled,
and in mmseg's eps.
"""
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODELS
from mmengine.structures import PixelData
from torch import Tensor, nn

from cpvt_mm.engine import load_config
from tests.conftest import ROOT, UPERNET, build_model

pytestmark = pytest.mark.slow

HEIGHT, WIDTH, CLASSES = 64, 96, 6
SMALL = dict(
    PyramidCPVT=dict(embed_dims=(8, 8, 16, 16), depths=(1, 2, 1, 1), num_heads=(1, 1, 2, 2), mlp_ratios=(2, 2, 2, 2),
                     sr_ratios=(4, 2, 2, 1)),
    CPVT=dict(embed_dims=16, depth=3, num_heads=2, mlp_ratio=2))
PEG = dict(type='PEG')
BOTH = [PEG, dict(type='LearnablePE')]
PLAIN_UPERNET = ROOT / 'configs/toy/upernet_cpvt_sfp_toy-shapes.py'
# The difference allowed, as a share of the gradient: far above these two, far below what any process contributes.
SHARE = 1e-5


class Case(NamedTuple):
    """A model to train: arguments of a bare backbone; or a config, what its backbone has else, and options."""
    backbone: dict[str, Any]
    config: Path | None = None
    options: dict[str, Any] | None = None


PYRAMID, PLAIN = dict(type='PyramidCPVT', out_norm=True), dict(type='CPVT')
# The PEG after the last block changes no class token. Its gradient is there, and zero.
USELESS = Case(dict(PLAIN, out_type='cls_token', position_encoding=dict(type='PEG', positions=(0, 2))))
# One of each behaviour: parts that are frozen, stages after the last output, which have no gradient, and with_cp.
CASES = {
    'pyramid': Case(dict(PYRAMID, position_encoding=PEG)),
    'pyramid, stages left out': Case(dict(PYRAMID, with_cp='selective', position_encoding=BOTH, out_indices=(0, 2))),
    'pyramid, frozen in part': Case(
        dict(PYRAMID, with_cp=True, position_encoding=BOTH, out_indices=(1, 3), frozen_stages=2)),
    'pyramid, frozen up to the stages left out': Case(
        dict(PYRAMID, with_cp='selective', position_encoding=PEG, out_indices=(1,), frozen_stages=1)),
    'pyramid, frozen': Case(dict(PYRAMID, with_cp=True, position_encoding=BOTH, out_indices=(3,), frozen_stages=4)),
    'plain': Case(dict(PLAIN, position_encoding=BOTH, out_indices=(0, 1, 2))),
    'plain, blocks left out': Case(dict(PLAIN, with_cp='selective', position_encoding=PEG, out_indices=(1,))),
    'plain, frozen in part': Case(dict(PLAIN, with_cp=True, position_encoding=BOTH, out_indices=(2,), frozen_stages=1)),
    'plain, frozen': Case(dict(PLAIN, position_encoding=PEG, out_indices=(0, 2), frozen_stages=3)),
    **{f'plain, {out_type}': Case(dict(PLAIN, out_type=out_type, dist_token=True))
       for out_type in ('cls_token', 'gap', 'raw')},
    'plain, useless PEG': USELESS,
    'upernet, plain': Case(dict(frozen_stages=0, with_cp='selective', position_encoding=BOTH), PLAIN_UPERNET),
    # For the maps of strides 8, 16 and 32.
    'upernet, three maps': Case(
        dict(position_encoding=BOTH, out_indices=(1, 2, 3), frozen_stages=2, with_cp=True), UPERNET,
        {'model.decode_head.in_channels': [64, 128, 192], 'model.decode_head.in_index': [0, 1, 2],
         'model.auxiliary_head.in_index': 1}),
}


class Weighted(nn.Module):
    """A backbone with a weight for each output, so that there is something to learn also if all of it is frozen."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.weights = nn.Parameter(torch.arange(1., 5.))

    def forward(self, images: Tensor) -> Tensor:
        outs = [out for pair in self.backbone(images) for out in (pair if isinstance(pair, tuple) else (pair,))]
        # Of each number another share: norms fix the sum of all, and the sum of squares.
        means = [(out * torch.linspace(-1, 1, out[0].numel()).sin().view(out.shape[1:])).mean() for out in outs]
        return sum(weight * mean for weight, mean in zip(self.weights, means, strict=False))


def build(case: Case) -> nn.Module:
    torch.manual_seed(0)
    if case.config is None:
        arch = SMALL[case.backbone['type']]
        return Weighted(MODELS.build(dict(arch=arch, img_size=64, **case.backbone, _scope_='cpvt_mm'))).double().train()
    cfg = load_config(case.config, case.options)
    cfg.model.backbone.update(case.backbone)
    cfg.model.decode_head.dropout_ratio = cfg.model.auxiliary_head.dropout_ratio = 0.
    return build_model(cfg).double().train()


def segmentation_samples(generator: torch.Generator) -> list[Any]:
    from mmseg.structures import SegDataSample
    labels = torch.randint(0, CLASSES, (4, 1, HEIGHT, WIDTH), generator=generator)
    for number, label in enumerate(labels):
        label[:, :10 * number] = 255
    return [SegDataSample(gt_sem_seg=PixelData(data=x), metainfo=dict(img_shape=(HEIGHT, WIDTH))) for x in labels]


def loss_of(case: Case, model: nn.Module, images: slice) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (4, 3, HEIGHT, WIDTH), generator=generator, dtype=torch.uint8)
    if case.config is None:
        return model(inputs[images].double() / 128 - 1)
    inner = model.module if isinstance(model, MMDistributedDataParallel) else model
    samples = segmentation_samples(generator)
    data = inner.data_preprocessor(dict(inputs=list(inputs[images]), data_samples=samples[images]), training=True)
    data['inputs'] = data['inputs'].double()
    return inner.parse_losses(model(**data, mode='loss'))[0]


def gradients(case: Case, model: nn.Module, images: slice) -> dict[str, Tensor]:
    """Returns those of the second of two iterations. DDP raises in it if the first one's loss lacked a parameter."""
    for _ in range(2):
        model.zero_grad()
        loss = loss_of(case, model, images)
        loss.backward()
    assert loss.dtype == torch.float64
    return {name.removeprefix('module.'): p.grad for name, p in model.named_parameters() if p.requires_grad}


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2,
                            timeout=timedelta(seconds=120))
    results = {}
    for name, case in CASES.items():
        try:
            model = MMDistributedDataParallel(build(case), find_unused_parameters=False)
            results[name] = gradients(case, model, slice(2 * rank, 2 * rank + 2))
        except RuntimeError as error:
            raise RuntimeError(f'In case {name}.') from error
    torch.save(results, folder / f'{rank}.pth')
    dist.destroy_process_group()


@pytest.fixture(scope='module')
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    """For each of two processes its gradients in all cases."""
    folder = tmp_path_factory.mktemp('processes')
    mp.spawn(work, (folder,), nprocs=2)
    return [torch.load(folder / f'{rank}.pth', weights_only=True) for rank in range(2)]


@pytest.mark.parametrize('name', CASES)
def test_two_processes_give_the_gradients_of_one(name: str, of_two: list[dict[str, dict[str, Tensor]]]) -> None:
    case = CASES[name]
    model = build(case)
    expected = gradients(case, model, slice(0, 4))
    trained = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
    for found in (process[name] for process in of_two):
        assert list(found) == list(expected) == trained
        for key in trained:
            assert (found[key] - expected[key]).norm() <= SHARE * expected[key].norm(), key
    without = {key for key in trained if 'backbone.' in key and not expected[key].any()}
    assert without == ({f'backbone.position_encoding.0.convs.2.0.{part}' for part in ('weight', 'bias')}
                       if case is USELESS else set())
