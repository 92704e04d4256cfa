"""Reference outputs, and what the CPU computes, in each precision; by fused kernels, without waiting, and compiled."""
import itertools
import re
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.torch_version import TorchVersion

from cpvt_mm import CPVT, PyramidCPVT
from tests.all_encodings import ENCODINGS, LEARNT_BIASES
from tests.backbones import BACKBONES, GOLDEN, WITH_CP, Operators, golden_cases, pretrained
from tests.models.test_running import TEN_SIZES
from tests.tokens.test_padding import SIZES, assert_maps_are_those_of_alone
from tests.zoo.checkpoints import shaken

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]

# Allowed differences from float64, as shares of a norm and in units of the precision's eps, the step from 1 to the next
# number. An image passes up to nine blocks, whose layers round a few times each. Most of these errors cancel: a CPU has
# 5 and 16. The gradient goes the same way back.
OUTPUT_ERRORS, GRADIENT_ERRORS = 8, 40


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest norm of a difference, as a share of the norm."""
    pairs = [(x.detach().double().cpu(), y.detach().double().cpu()) for x, y in zip(found, expected, strict=True)]
    return max(((x - y).norm() / y.norm()).item() for x, y in pairs)


def outputs_and_gradient(model: nn.Module, images: Tensor, dtype: torch.dtype = torch.float32
                         ) -> tuple[tuple[Tensor, ...], Tensor]:
    """The outputs of a model, in half precision by autocast, and the gradient of all weights in one vector."""
    model.zero_grad()
    with nullcontext() if dtype == torch.float32 else torch.autocast(images.device.type, dtype):
        outputs = model(images)
    sum(output.sin().mean() for output in outputs).backward()
    return outputs, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@torch.no_grad()
@pytest.mark.parametrize('name', ['official', 'timm', 'mmseg', 'deit_timm'])
def test_reference_outputs(name: str, device: torch.device) -> None:
    if name == 'deit_timm':
        model = pretrained(GOLDEN / f'{name}.pth', CPVT, img_size=64, out_type='raw',
                           position_encoding=dict(type='LearnablePE'))
        arrays = {name: torch.from_numpy(array) for name, array in np.load(GOLDEN / f'{name}_io.npz').items()}
        cases = [(arrays['input'], [arrays['tokens']])]
    else:
        model = pretrained(GOLDEN / f'{name}.pth', norm_eps=1e-5 if name == 'mmseg' else 1e-6)
        cases = golden_cases(name)
    model.to(device)
    for image, expected in cases:
        for output, wanted in zip(model(image.to(device)), expected, strict=True):
            torch.testing.assert_close(output.cpu(), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('kind', BACKBONES)
def test_every_encoding_in_every_precision(kind: str, name: str, device: torch.device) -> None:
    model = shaken(BACKBONES[kind](position_encoding=ENCODINGS[name]))
    images = torch.randn(2, 3, 70, 102)
    outputs, gradient = outputs_and_gradient(model.double(), images.double())
    model.float().to(device)
    for dtype, layout in itertools.product(DTYPES, (torch.contiguous_format, torch.channels_last)):
        batch = images.to(device).contiguous(memory_format=layout)
        actual, found_gradient = outputs_and_gradient(model, batch, dtype)
        assert all(output.isfinite().all() for output in actual) and found_gradient.isfinite().all()
        assert relative_error(actual, outputs) < OUTPUT_ERRORS * torch.finfo(dtype).eps
        assert relative_error([found_gradient], [gradient]) < GRADIENT_ERRORS * torch.finfo(dtype).eps


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('kind', ['conv', 'plain'])
def test_what_is_computed_again_draws_the_same(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    images, actual = torch.randn(2, 3, 64, 96, device=device), []
    for with_cp in WITH_CP:
        torch.manual_seed(0)
        model = shaken(BACKBONES[kind](with_cp=with_cp, drop_rate=0.2, drop_path_rate=0.2)).to(device).train()
        torch.manual_seed(0)
        actual.append(outputs_and_gradient(model, images, dtype)[1])
    # The order of sums on a GPU is not fixed.
    assert max(relative_error([gradient], actual[:1]) for gradient in actual) < 8 * torch.finfo(dtype).eps
    assert actual[0].any()


@torch.no_grad()
@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('kind', BACKBONES)
def test_images_of_several_sizes_get_the_features_they_have_alone(kind: str, name: str, device: torch.device) -> None:
    exact, plain = (BACKBONES[kind](position_encoding=ENCODINGS[name], padding=padding).eval().to(device)
                    for padding in ('exact', None))
    plain.load_state_dict(exact.state_dict())
    images = torch.randn(len(SIZES), 3, 96, 128, device=device)
    assert_maps_are_those_of_alone(exact(images, SIZES), images, plain, atol=1e-4)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('kind', BACKBONES)
def test_no_other_kernel_is_needed(kind: str, name: str, dtype: torch.dtype, device: torch.device) -> None:
    if device.type == 'cpu' and name in LEARNT_BIASES:
        pytest.skip('on a CPU torch has no fused kernel for a bias that is learnt')
    model = BACKBONES[kind](position_encoding=ENCODINGS[name]).to(device).train()
    images = torch.randn(2, 3, 70, 102, device=device)
    # torch raises where none of these kernels takes the tensors.
    with (sdpa_kernel(FUSED), Operators() as operators,
          torch.autocast(device.type, dtype, enabled=dtype != torch.float32)):
        outputs = model(images)
    assert any(re.match('aten::_scaled_dot_product_(flash|efficient)_attention', name) for name in operators.names)
    assert not any('softmax' in name for name in operators.names)
    sum(output.float().sum() for output in outputs).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize('with_cp', [False, True])
@pytest.mark.parametrize('padding', [None, 'exact'])
@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('kind', BACKBONES)
def test_nobody_waits_for_the_gpu(kind: str, name: str, padding: str | None, with_cp: bool, gpu: torch.device) -> None:
    model = BACKBONES[kind](position_encoding=ENCODINGS[name], padding=padding, with_cp=with_cp, drop_rate=0.1,
                            attn_drop_rate=0.1, drop_path_rate=0.1).to(gpu)
    # No other test has images of this size, so that no encoding has tensors of theirs from before.
    images = torch.randn(3, 3, 96, 1304, device=gpu)
    torch.cuda.synchronize(gpu)
    torch.cuda.set_sync_debug_mode('error')
    try:
        for training in (True, False):
            model.train(training)(images, [(96, 1304), (50, 70), (33, 1)] if padding else None)
    finally:
        torch.cuda.set_sync_debug_mode('default')


def assert_compiled_gives_the_same(compiled: nn.Module, model: nn.Module, images: Tensor, training: bool) -> None:
    results = []
    for run in (compiled, model):
        with torch.set_grad_enabled(training):
            # The next run of a CUDA graph writes into the outputs.
            outputs, *gradient = outputs_and_gradient(run, images) if training else (run(images),)
            results.append([*(output.detach().clone() for output in outputs), *gradient])
    # Sums in another order: as many units of eps as other precisions are allowed.
    assert relative_error(*results) < GRADIENT_ERRORS * torch.finfo(torch.float32).eps


@pytest.mark.slow
@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('kind', ['pyramid', 'plain'])
def test_ten_sizes_recompile_at_most_twice(kind: str, training: bool, device: torch.device,
                                           request: pytest.FixtureRequest) -> None:
    if training and device.type == 'cuda' and TorchVersion(torch.__version__) < '2.12':
        request.applymarker(pytest.mark.xfail(raises=RuntimeError, reason='issue 181563 of PyTorch'))
    torch.compiler.reset()
    counters.clear()
    model = {'pyramid': PyramidCPVT('nano'), 'plain': CPVT(dict(embed_dims=48, depth=4, num_heads=3))}[kind]
    model = model.to(device).train(training)
    backend = 'inductor' if device.type == 'cuda' else 'aot_eager'  # which takes seconds on a CPU
    compiled = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)
    for size in TEN_SIZES:
        assert_compiled_gives_the_same(compiled, model, torch.randn(2, 3, *size, device=device), training)
    assert 1 <= counters['stats']['unique_graphs'] <= 3  # torch may call the backend twice for one graph


@pytest.mark.slow
@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('position_encoding', ['PEG', 'RotaryPE'])
def test_cuda_graphs_of_one_size(position_encoding: str, training: bool, gpu: torch.device) -> None:
    torch.compiler.reset()
    counters.clear()
    model = PyramidCPVT('nano', position_encoding=dict(type=position_encoding)).to(gpu).train(training)
    compiled = torch.compile(model, mode='reduce-overhead', fullgraph=True)
    for _ in range(4):  # the first to warm up, the second to record
        torch.compiler.cudagraph_mark_step_begin()
        assert_compiled_gives_the_same(compiled, model, torch.randn(2, 3, 224, 224, device=gpu), training)
    assert not counters['inductor']['cudagraph_skips']


def test_memory_does_not_grow_with_queries_times_keys(gpu: torch.device) -> None:
    model = BACKBONES['plain']().to(gpu).train()
    peaks = []
    for side in (512, 1024):  # 1025 and 4097 tokens
        images = torch.randn(1, 3, side, side, device=gpu)
        torch.cuda.reset_peak_memory_stats(gpu)
        before = torch.cuda.memory_allocated(gpu)
        sum(output.square().mean() for output in model(images)).backward()
        peaks.append(torch.cuda.max_memory_allocated(gpu) - before)
        model.zero_grad()
    assert peaks[1] < 6 * peaks[0]  # four times the tokens; 16 times as many pairs of them
