"""Compiled backbones compute the same: for images of any size, and as CUDA graphs of one."""
import pytest
import torch
from torch._dynamo.utils import counters

from cpvt_mm import CPVT, PyramidCPVT
from tests.gpu.test_numbers import outputs_and_gradient, relative_error
from tests.models.test_compile import SIZES

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

# Sums in another order: as many units of eps as `test_numbers` allows the gradient.
SHARE = 40 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('kind', ['pyramid', 'plain'])
def test_ten_sizes_recompile_at_most_twice(kind: str, training: bool, device: torch.device) -> None:
    torch.compiler.reset()
    counters.clear()
    model = {'pyramid': PyramidCPVT('nano'), 'plain': CPVT(dict(embed_dims=48, depth=4, num_heads=3))}[kind]
    model = model.to(device).train(training)
    backend = 'inductor' if device.type == 'cuda' else 'aot_eager'  # which takes seconds on a CPU
    compiled = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)
    for size in SIZES:
        images = torch.randn(2, 3, *size, device=device)
        if training:
            (found, gradient), (expected, expected_gradient) = (outputs_and_gradient(run, images)
                                                                for run in (compiled, model))
            assert relative_error([gradient], [expected_gradient]) < SHARE
        else:
            with torch.no_grad():
                found, expected = compiled(images), model(images)
        assert relative_error(found, expected) < SHARE
    assert 1 <= counters['stats']['unique_graphs'] <= 3  # torch may call the backend twice for one graph


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('position_encoding', ['PEG', 'RotaryPE'])
def test_cuda_graphs_of_one_size(position_encoding: str, training: bool, gpu: torch.device) -> None:
    torch.compiler.reset()
    counters.clear()
    model = PyramidCPVT('nano', position_encoding=dict(type=position_encoding)).to(gpu).train(training)
    compiled = torch.compile(model, mode='reduce-overhead', fullgraph=True)
    for _ in range(4):  # the first to warm up, the second to record
        images = torch.randn(2, 3, 224, 224, device=gpu)
        torch.compiler.cudagraph_mark_step_begin()
        if training:
            found, gradient = outputs_and_gradient(compiled, images)
            found = [output.detach().clone() for output in found]
            expected, expected_gradient = outputs_and_gradient(model, images)
            assert relative_error([gradient], [expected_gradient]) < SHARE
        else:
            with torch.no_grad():
                found = [output.clone() for output in compiled(images)]
                expected = model(images)
        assert relative_error(found, expected) < SHARE
    assert not counters['inductor']['cudagraph_skips']
