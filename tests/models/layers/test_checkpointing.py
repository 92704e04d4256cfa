from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.models.grid import Grid
from cpvt_mm.models.layers import Block
from cpvt_mm.models.layers.blocks import recomputed, run_blocks
from cpvt_mm.models.position_encodings import PositionEncodings
from tests.conftest import WITH_CP, Operators, kept_bytes


class Dropped(nn.Module):

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x.square())


class WithCp(nn.Module):
    """A block in the way that the backbones run it."""

    def __init__(self, with_cp: bool | str) -> None:
        super().__init__()
        self.block = Block(0, embed_dims=8, num_heads=2, mlp_ratio=8, recompute_mlp=with_cp == 'selective')
        self.with_cp = with_cp

    def forward(self, x: Tensor) -> Tensor:
        [out] = run_blocks(nn.ModuleList([self.block]), PositionEncodings(), x, Grid(20, 20), self.with_cp is True,
                           keep=[0])
        return out


@pytest.mark.parametrize('active', [False, True])
def test_the_same_random_numbers_are_drawn_again(active: bool) -> None:
    x = torch.randn(100, requires_grad=True)
    out = recomputed(Dropped(), active, x)
    dropped = out == 0
    out.sum().backward()
    assert 0 < dropped.sum() < 100
    assert torch.equal(x.grad == 0, dropped)


@pytest.mark.parametrize('with_cp, attention, mlp', [(False, False, False), ('selective', False, True),
                                                     (True, True, True)])
def test_what_the_backward_pass_computes_again(with_cp: bool | str, attention: bool, mlp: bool) -> None:
    out = WithCp(with_cp)(torch.randn(1, 400, 8, requires_grad=True))
    with Operators() as backward:
        out.sum().backward()
    assert ('aten::_scaled_dot_product_flash_attention_for_cpu' in backward.names) == attention
    assert ('aten::gelu' in backward.names) == mlp


def test_without_gradients_nothing_is_kept_or_wrapped() -> None:
    calls = []
    block = Block(0, embed_dims=8, num_heads=2, mlp_ratio=4, recompute_mlp=True)
    for module in (block, block.mlp):
        module.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    with torch.no_grad():
        assert not recomputed(block, True, torch.randn(1, 25, 8), Grid(5, 5), PositionEncodings()).requires_grad
    assert calls == [False, False]


def test_what_a_block_keeps_beside_its_input() -> None:
    """In tokens of 8 channels, a number being 1/8."""
    x = torch.randn(1, 400, 8, requires_grad=True)
    blocks = {with_cp: WithCp(with_cp) for with_cp in WITH_CP}
    kept = {with_cp: kept_bytes(block, partial(block, x)) / x.untyped_storage().nbytes()
            for with_cp, block in blocks.items()}
    output, attention = 1, 1 + 2 / 8  # and for each head the logarithm of the softmax's denominator
    assert kept[True] == output
    qkv, norms, first_sum, hidden = 3, 2 * (1 + 2 / 8), 1, 2 * 8  # means and deviations; before and after the GELU
    assert kept['selective'] == output + attention + qkv + norms + first_sum
    assert kept[False] == kept['selective'] + hidden
