import pytest
import torch
from cpvt_mm.models.tracing import PatchConv2d, is_known_to_be, is_traced
from torch import Tensor, nn

from cpvt_mm.models import tracing


def test_code_knows_whether_it_is_traced() -> None:
    seen: list[bool] = []

    def function(x: Tensor) -> Tensor:
        seen.append(is_traced())
        return x + is_traced()

    assert not is_traced()
    assert torch.compile(function, backend='eager', fullgraph=True)(torch.zeros(1)) == 1
    torch.jit.trace(function, torch.zeros(1), check_trace=False)
    assert seen[-1]


def test_sizes_are_known_in_eager_code_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_known_to_be(torch.Size([2, 3]), (2, 3))
    assert not is_known_to_be((2, 3), (3, 2))
    monkeypatch.setattr(tracing, 'is_traced', lambda: True)
    assert not is_known_to_be((2, 3), (2, 3))


@pytest.mark.parametrize('bias', [True, False])
def test_a_convolution_of_patches_is_the_same_when_traced(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    conv = PatchConv2d(3, 5, 4, stride=4, bias=bias).double()
    x = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    eager = conv(x)
    torch.testing.assert_close(eager, nn.functional.conv2d(x, conv.weight, conv.bias, stride=4))
    monkeypatch.setattr(tracing, 'is_traced', lambda: True)
    assert eager.shape == (2, 5, 2, 3)
    torch.testing.assert_close(conv(x), eager)
