import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.models.layers import Block
from cpvt_mm.models.layers.checkpointing import run_block
from cpvt_mm.models.position_encodings import PositionEncodings
from tests.conftest import WITH_CP, Operators, kept_bytes


class Dropped(nn.Module):

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x.square())


@pytest.mark.parametrize('with_cp', WITH_CP)
def test_the_same_random_numbers_are_drawn_again(with_cp: bool | str) -> None:
    x = torch.randn(100, requires_grad=True)
    out = run_block(Dropped(), with_cp, x)
    dropped = out == 0
    out.sum().backward()
    assert 0 < dropped.sum() < 100
    assert torch.equal(x.grad == 0, dropped)


@pytest.mark.parametrize('with_cp, fused, linear', [(False, 0, False), ('selective', 0, True), (True, 1, True)])
def test_what_the_backward_pass_computes_again(with_cp: bool | str, fused: int, linear: bool) -> None:
    block, x = Block(embed_dims=8, num_heads=2, mlp_ratio=4), torch.randn(1, 20, 20, 8, requires_grad=True)
    out = run_block(block, with_cp, x, PositionEncodings(), 0)
    with Operators() as backward:
        out.sum().backward()
    assert ('aten::_scaled_dot_product_flash_attention_for_cpu' in backward.names) == bool(fused)
    assert ('aten::native_layer_norm' in backward.names) == linear


def test_without_gradients_nothing_is_kept_or_wrapped() -> None:
    calls = []
    block = Block(embed_dims=8, num_heads=2, mlp_ratio=4)
    block.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    with torch.no_grad():
        assert not run_block(block, True, torch.randn(1, 5, 5, 8), PositionEncodings(), 0).requires_grad
    assert calls == [False]


def test_what_a_block_keeps_beside_its_input() -> None:
    """In tokens of 8 channels, a number being 1/8."""
    block, x = Block(embed_dims=8, num_heads=2, mlp_ratio=8), torch.randn(1, 20, 20, 8, requires_grad=True)
    kept = {with_cp: kept_bytes(block, lambda with_cp=with_cp: run_block(block, with_cp, x, PositionEncodings(), 0))
            / x.untyped_storage().nbytes() for with_cp in WITH_CP}
    output, attention = 1, 1 + 2 / 8  # and for each head the logarithm of the softmax's denominator
    assert kept[True] == output
    qkv, projection = 3, 1
    assert kept['selective'] == output + attention + qkv + projection
    norms, first_sum, hidden = 2 * (1 + 2 / 8), 1, 2 * 8  # means and deviations; before and after the GELU
    assert kept[False] == output + attention + qkv + norms + first_sum + hidden
