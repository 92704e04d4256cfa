"""Layers that others replace or hook are called: the backbone reads no weight past its layer."""
from functools import partial

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.backbones import BACKBONES
from tests.models.conftest import Build

KINDS = {**BACKBONES, **{f'{name}-qk': partial(BACKBONES[name], position_encoding=dict(type='PEG', target='qk'))
                         for name in ('conv', 'plain')}}
pytestmark = [pytest.mark.usefixtures('float64'), pytest.mark.parametrize('build', KINDS.values(), ids=KINDS)]


@pytest.mark.slow
@torch.no_grad()
def test_what_every_layer_returns_counts(build: Build) -> None:
    model, image = build().eval(), torch.randn(1, 3, 64, 96)
    expected = model(image)[-1]
    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)) and not list(module.children()):
            with module.register_forward_hook(lambda module, args, out: out + torch.randn_like(out)):
                assert not torch.equal(model(image)[-1], expected), name


def test_lora_of_peft_trains_adapters_only(build: Build) -> None:
    model, image = build().eval(), torch.randn(1, 3, 64, 96)
    expected = model(image)[-1]
    inject_adapter_in_model(LoraConfig(target_modules=['q', 'kv', 'proj'], r=2), model)
    outputs = model(image)[-1]
    torch.testing.assert_close(outputs, expected)  # LoRA starts with zeros
    outputs.square().sum().backward()
    adapted = {name.partition('.lora_')[0] for name, p in model.named_parameters() if p.grad is not None}
    assert adapted == {name for name, module in model.named_modules() if hasattr(module, 'lora_A')} != set()
    assert all(('lora_' in name) == (p.grad is not None) for name, p in model.named_parameters())
    # The second matrix is zero at first, so the first learns nothing yet.
    assert all(p.grad.any() for name, p in model.named_parameters() if 'lora_B' in name)


@pytest.mark.parametrize('with_cp', [False, True])
def test_gradients_can_be_differentiated_again(build: Build, with_cp: bool) -> None:
    """The gradient of a penalty on the gradient, against differences of the penalty in float64."""
    model, (image, direction) = build(with_cp=with_cp), torch.randn(2, 1, 3, 33, 40)

    def penalty(x: Tensor, create_graph: bool = False) -> Tensor:
        gradient, = torch.autograd.grad(model(x)[-1].sin().sum(), x, create_graph=create_graph)
        return gradient.square().sum()

    # torch's fused attention kernels have no second derivative, its math kernel has.
    with sdpa_kernel(SDPBackend.MATH):
        x, step = image.clone().requires_grad_(), 1e-5
        slope, = torch.autograd.grad(penalty(x, create_graph=True), x)
        ahead, behind = (penalty((image + sign * step * direction).requires_grad_()) for sign in (1, -1))
    torch.testing.assert_close((slope * direction).sum(), (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-9)
