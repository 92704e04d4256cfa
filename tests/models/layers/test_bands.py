import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.models.layers import Block, bands
from cpvt_mm.models.layers.attend import attend
from cpvt_mm.models.layers.bands import in_bands, lean_linear, recomputed, rows_of_band
from cpvt_mm.models.position_encodings import PositionEncodings
from tests.conftest import WITH_CP


@pytest.fixture
def narrow_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bands of 7 tokens."""
    monkeypatch.setattr(bands, 'NUMBERS_PER_THREAD', 1)
    monkeypatch.setattr(bands, 'LEAST_ROWS', 7)


def test_a_band_holds_as_much_as_the_threads_keep_in_cache() -> None:
    threads = torch.get_num_threads()
    assert rows_of_band(width=1024) == 512 * threads
    assert rows_of_band(width=2**30) == 512


def test_bands_are_put_together_in_order(narrow_bands: None) -> None:
    lengths = []
    x = torch.randn(3, 5, 2)
    out = in_bands(lambda band: lengths.append(len(band)) or band.repeat(1, 2), x, width=4)
    assert torch.equal(out, x.repeat(1, 1, 2))
    assert lengths == [7, 7, 1]


def gradients(out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out.square().sum(), inputs)


@pytest.mark.parametrize('with_bias', [True, False])
def test_lean_linear_is_linear_with_the_same_gradients(narrow_bands: None, with_bias: bool) -> None:
    x, weight, bias, scale = (torch.randn(*shape, requires_grad=True) for shape in ((4, 5, 6), (3, 6), (3,), (6,)))

    def inner(x: Tensor, scale: Tensor) -> Tensor:
        return F.gelu(x * scale)

    inputs = (x, weight, scale, *[bias] * with_bias)
    out = lean_linear(inner, x, weight, bias if with_bias else None, scale)
    expected = F.linear(inner(x, scale), weight, bias if with_bias else None)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(gradients(out, *inputs), gradients(expected, *inputs))


def test_lean_linear_keeps_its_arguments_only() -> None:
    x, weight = torch.randn(4096, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.untyped_storage().data_ptr()) or t,
                                                  lambda t: t):
        lean_linear(F.gelu, x, weight, None)
    assert set(kept) == {x.untyped_storage().data_ptr(), weight.untyped_storage().data_ptr()}


@pytest.mark.parametrize('heads', [1, 2])
def test_attention_in_bands_is_attention(narrow_bands: None, heads: int) -> None:
    q, k, v = (torch.randn(2, heads, tokens, 4, requires_grad=True) for tokens in (30, 9, 9))
    out, expected = attend(q, k, v), F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(gradients(out, q, k, v), gradients(expected, q, k, v))


def test_attention_with_a_bias_or_dropout_is_torchs() -> None:
    q, k, v = torch.randn(3, 2, 3, 600, 4)
    bias = torch.randn(600, 600)
    torch.testing.assert_close(attend(q, k, v, bias), F.scaled_dot_product_attention(q, k, v, bias))
    torch.manual_seed(0)
    dropped = attend(q, k, v, drop_rate=0.5)
    torch.manual_seed(0)
    torch.testing.assert_close(dropped, F.scaled_dot_product_attention(q, k, v, dropout_p=0.5))


@pytest.mark.parametrize('with_cp', WITH_CP)
def test_a_block_in_bands_is_the_block(with_cp: bool | str, monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block(embed_dims=8, num_heads=2, mlp_ratio=4, sr_ratio=2, with_cp=with_cp)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 6, 5, 8, requires_grad=True)
    inputs = (x, *block.parameters())
    expected = block(x, PositionEncodings(), 0)
    expected_gradients = gradients(expected, *inputs)
    monkeypatch.setattr(bands, 'NUMBERS_PER_THREAD', 1)
    monkeypatch.setattr(bands, 'LEAST_ROWS', 7)
    out = block(x, PositionEncodings(), 0)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(gradients(out, *inputs), expected_gradients, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(block(x, PositionEncodings(), 0), expected)


def test_recomputed_draws_the_same_random_numbers_again() -> None:
    x = torch.randn(100, requires_grad=True)
    out = recomputed(lambda x: F.dropout(x.square()), x)
    dropped = out == 0
    out.sum().backward()
    assert 0 < dropped.sum() < 100
    assert torch.equal(x.grad == 0, dropped)
