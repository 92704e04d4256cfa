import pytest
import torch

from cpvt_mm import PyramidCPVT
from tests.all_encodings import BIASES, ENCODINGS, LEARNT_BIASES
from tests.backbones import NARROW, Operators


@pytest.mark.parametrize('kwargs', [{}, dict(norm_eps=1e-4)])
def test_norm_eps_is_of_the_blocks_and_of_the_norms_after_stages(kwargs: dict[str, float]) -> None:
    for name, module in PyramidCPVT(NARROW, out_norm=True, **kwargs).named_modules():
        if isinstance(module, torch.nn.LayerNorm):
            is_meant = name.endswith(('.norm1', '.norm2')) or name.startswith('out_norms.')
            assert module.eps == (kwargs.get('norm_eps', 1e-6) if is_meant else 1e-5), name


@pytest.mark.parametrize('name', ENCODINGS)
def test_attention_is_fused_and_queries_by_keys_are_never_held_unless_a_bias_is(name: str) -> None:
    model = PyramidCPVT(NARROW, out_indices=(0,), position_encoding=ENCODINGS[name]).train()
    with Operators() as seen:
        model(torch.randn(1, 3, 512, 512))[0].mean().backward()
    assert ('aten::_scaled_dot_product_flash_attention_for_cpu' in seen.names) == (name not in LEARNT_BIASES)
    queries, keys = (512 // 4)**2, (512 // 32)**2
    largest = max(seen.bytes.values()) // 4  # numbers of float32
    # Without biases, the widest is the hidden layer of the MLP.
    assert (largest <= queries * 16 * 8 < queries * keys) == (name not in BIASES)


def test_padding_does_not_blow_up_the_first_gradients() -> None:
    model, norms = PyramidCPVT('nano'), []
    image = torch.randn(2, 3, 96, 96)
    padded = image.clone()
    padded[..., 48:] = 0
    for x in (image, padded):
        model.zero_grad()
        sum((output * torch.randn_like(output)).mean() for output in model(x)).backward()
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
    assert norms[1] < 10 * norms[0]
