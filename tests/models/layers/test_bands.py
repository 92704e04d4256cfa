import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.models.layers import Block, bands
from cpvt_mm.models.layers.attend import attend
from cpvt_mm.models.layers.bands import lean_linear, rows_of_band
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


def test_frozen_weights_get_no_gradient_and_cost_none(narrow_bands: None) -> None:
    x, weight, scale = torch.randn(20, 6, requires_grad=True), torch.randn(3, 6), torch.randn(6)
    out = lean_linear(lambda x, scale: F.gelu(x * scale), x, weight, None, scale)
    torch.testing.assert_close(gradients(out, x), gradients(F.linear(F.gelu(x * scale), weight), x))
    weight.requires_grad_()
    out = lean_linear(lambda x, scale: F.gelu(x * scale), x.detach(), weight, None, scale)
    torch.testing.assert_close(gradients(out, weight), gradients(F.linear(F.gelu(x.detach() * scale), weight), weight))
    out = lean_linear(lambda x, scale: F.gelu(x * scale), x.detach(), weight, None, scale)
    out.sum().backward()  # whose gradient is a view of one number
    torch.testing.assert_close(weight.grad, F.gelu(x.detach() * scale).sum(0).expand(3, -1))


def test_it_says_that_it_cannot_be_differentiated_twice() -> None:
    x, weight = torch.randn(20, 6, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    with pytest.raises(RuntimeError, match='cannot be differentiated again'):
        torch.autograd.grad(lean_linear(F.gelu, x, weight, None).sum(), x, create_graph=True)


@torch.no_grad()
def test_a_layer_that_was_replaced_or_hooked_is_called() -> None:
    block, x = Block(embed_dims=8, num_heads=2, mlp_ratio=4), torch.randn(2, 6, 5, 8)
    seen = []
    hooks = [layer.register_forward_hook(lambda layer, args, out: seen.append(layer))
             for layer in (block.norm2, block.mlp.fc1, block.mlp.fc2)]
    expected = block(x, PositionEncodings(), 0)
    assert seen == [block.norm2, block.mlp.fc1, block.mlp.fc2]
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(block(x, PositionEncodings(), 0), expected)
    block.mlp.fc1 = nn.Sequential(block.mlp.fc1, nn.Tanh())
    assert (block(x, PositionEncodings(), 0) - expected).abs().max() > 1e-4


@pytest.mark.parametrize('drop_rate', [0., 0.1])
def test_a_block_keeps_little(drop_rate: float) -> None:
    x, kept = torch.randn(1, 20, 20, 8, requires_grad=True), {}
    for with_cp in WITH_CP:
        block = Block(embed_dims=8, num_heads=2, mlp_ratio=8, drop_rate=drop_rate, with_cp=with_cp)
        storages: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(
                lambda t, s=storages: s.update({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()}) or t,
                lambda t: t):
            block(x, PositionEncodings(), 0)
        for parameter in block.parameters():
            storages.pop(parameter.untyped_storage().data_ptr(), None)
        kept[with_cp] = sum(storages.values()) / x.untyped_storage().nbytes()  # in tokens
    assert kept[True] < 3 and kept['selective'] < 11 and kept[False] < 36
