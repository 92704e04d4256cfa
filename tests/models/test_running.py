"""Compiled or traced, backbones compute the same at any size; a forward pass waits for nothing, and keeps its share."""
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.tokens.grid import Size
from tests.all_encodings import ENCODINGS, ONE_FOR_EACH_POINT
from tests.backbones import BACKBONES, NARROW
from tests.models.conftest import PYRAMID, Build, both

pytestmark = pytest.mark.usefixtures('float64')

TEN_SIZES = [(224, 224), (256, 320), (200, 333), (96, 128), (320, 224), (167, 333), (64, 64), (256, 384), (231, 100),
             (288, 288)]


def assert_same(run: nn.Module, model: nn.Module, sizes: Sequence[Size] = ((64, 96), (70, 50)), atol: float = 1e-7
                ) -> None:
    """Asserts that two functions give the same maps, and have the same gradients if they have any."""
    for size in sizes:
        image, results = torch.randn(1, 3, *size), []
        for function in (run, model):
            outputs = function(image)
            if torch.is_grad_enabled():
                model.zero_grad()
                sum(output.square().mean() for output in outputs).backward()
            results.append([*outputs, *(p.grad for p in model.parameters() if p.grad is not None)])
        torch.testing.assert_close(*results, rtol=1e-7, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize('training', [False, True])
def test_ten_sizes_recompile_at_most_twice(training: bool) -> None:
    torch.compiler.reset()
    counters.clear()
    model = PyramidCPVT(dict(NARROW, depths=(1, 1, 1, 1))).train(training)
    with torch.set_grad_enabled(training):
        compiled = torch.compile(model, backend='eager', dynamic=True, fullgraph=True)
        assert_same(compiled, model, TEN_SIZES, atol=1e-9)
    assert 1 <= counters['stats']['unique_graphs'] <= 2


# Training does not compile: Inductor of torch 2.13 compares strides of unknown sizes on a CPU.
@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize(('backend', 'name'), [*itertools.product(['eager'], ONE_FOR_EACH_POINT),
                                               ('inductor', 'peg-learnable')])
@pytest.mark.parametrize('build', [
    partial(PyramidCPVT, NARROW, out_indices=(0,)),  # all stages take minutes
    partial(CPVT, dict(embed_dims=24, depth=2, num_heads=3))], ids=['pyramid', 'plain'])
def test_it_is_one_graph_at_any_size(build: Build, backend: str, name: str, monkeypatch: pytest.MonkeyPatch,
                                     tmp_path: Path) -> None:
    monkeypatch.setenv('TORCHINDUCTOR_CACHE_DIR', str(tmp_path))
    torch.compiler.reset()
    model = build(position_encoding=ENCODINGS[name]).eval()
    assert_same(torch.compile(model, backend=backend, dynamic=True, fullgraph=True), model)


# Stands in for a GPU: torch works out shapes there, and has no values to read. `tests/gpu` asks a real one.
META = torch.device('meta')


class NoListsToDevices(TorchFunctionMode):
    """Raises where a list is made a tensor of a device: torch copies it, and the caller waits."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        assert func not in (torch.tensor, torch.as_tensor) or (kwargs or {}).get('device') != META, func
        return func(*args, **(kwargs or {}))


class NoBlockingCopies(TorchDispatchMode):
    """Raises where a tensor goes from one device to another and the caller waits for it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        assert func.name() != 'aten::_to_copy' or args[0].device == result.device or kwargs.get('non_blocking')
        return result


@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('model', BACKBONES)
def test_a_forward_pass_waits_for_nothing(model: str, name: str) -> None:
    backbone = BACKBONES[model](position_encoding=ENCODINGS[name], padding='exact', drop_rate=0.1, attn_drop_rate=0.1,
                             drop_path_rate=0.1).to(META)
    # No other test has images of this size there, so that no encoding has tensors of theirs from before.
    images = torch.empty(2, 3, 64, 1504, device=META)
    with NoBlockingCopies(), NoListsToDevices():
        outputs = backbone(images, [(64, 1504), (50, 33)], num_frames=1)
    assert all(output.device == META for output in outputs)


@both
def test_torch_fx_traces_the_layers_for_any_size(build: Build) -> None:
    model = build().eval()
    assert_same(torch.fx.symbolic_trace(model), model)


@torch.no_grad()
def test_torch_jit_traces_the_pyramid(tmp_path: Path) -> None:
    model = PYRAMID().eval()
    torch.jit.trace(model, torch.randn(1, 3, 256, 256)).save(tmp_path / 'traced.pt')
    assert_same(torch.jit.load(tmp_path / 'traced.pt'), model, [(256, 256)])
