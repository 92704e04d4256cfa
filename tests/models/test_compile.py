from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from cpvt_mm import CPVT, PyramidCPVT
from tests.conftest import NARROW_PLAIN

SIZES = [(224, 224), (256, 320), (200, 333), (96, 128), (320, 224), (167, 333), (64, 64), (256, 384), (231, 100),
         (288, 288)]


@pytest.mark.slow
@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('mode', ['forward', 'train'])
def test_ten_sizes_recompile_at_most_twice(mode: str) -> None:
    torch.compiler.reset()
    counters.clear()
    model = PyramidCPVT('nano').train(mode == 'train')
    compiled = torch.compile(model, backend='aot_eager', dynamic=True, fullgraph=True)
    for size in SIZES:
        image = torch.randn(1, 3, *size)
        results = []
        for run in (compiled, model):
            with torch.set_grad_enabled(mode == 'train'):
                outputs = run(image)
            if mode == 'train':
                model.zero_grad()
                sum(output.square().mean() for output in outputs).backward()
            results.append([*outputs, *(p.grad for p in model.parameters() if p.grad is not None)])
        torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)
    assert 1 <= counters['stats']['unique_graphs'] <= 3  # torch may call the backend twice for one graph


@torch.no_grad()
@pytest.mark.parametrize('build', [lambda: PyramidCPVT('nano'), lambda: CPVT(NARROW_PLAIN)], ids=['pyramid', 'plain'])
def test_torch_fx_traces_the_layers_for_any_size(build: Callable[[], nn.Module]) -> None:
    model = build().eval()
    traced = torch.fx.symbolic_trace(model)
    for size in ((64, 96), (70, 50)):
        image = torch.randn(2, 3, *size)
        torch.testing.assert_close(traced(image), model(image), rtol=0, atol=1e-4)
