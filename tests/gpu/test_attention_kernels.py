"""Attention runs in torch's fused kernels, which hold no matrix of queries x keys."""
import re

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.conftest import BACKBONES, Operators
from tests.encodings import ENCODINGS

pytestmark = pytest.mark.gpu

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('kind', BACKBONES)
def test_no_other_kernel_is_needed(kind: str, name: str, dtype: torch.dtype, device: torch.device) -> None:
    if device.type == 'cpu' and name == 'relative':
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


def test_a_kernel_that_is_not_allowed_is_an_error(device: torch.device) -> None:
    q = torch.randn(1, 1, 8, 7, dtype=torch.float64, device=device)  # no fused kernel of a GPU takes float64
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]), pytest.raises(RuntimeError, match=r'(?i)no.*kernel|backend'):
        torch.nn.functional.scaled_dot_product_attention(q, q, q)


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
