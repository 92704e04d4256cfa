"""The backbones as models of timm: the checks that timm runs on its own models, and what its arguments mean here."""
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import cpvt_mm.timm  # noqa: F401  # registers the models
from cpvt_mm import list_backbones
from openmmlab_runs.errors import UserError
from tests.conftest import refusal

PYRAMID, PLAIN = 'pyramid_cpvt_nano', 'cpvt_tiny'


def create(name: str, **kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, **kwargs).eval()


@pytest.mark.parametrize('name', [PYRAMID, PLAIN])
@torch.no_grad()
def test_features_are_the_maps_of_the_backbone(name: str) -> None:
    size = (65, 97)
    model, image = create(name, features_only=True), torch.randn(2, 3, *size)
    maps, info = model(image), model.feature_info
    assert [x.shape[1] for x in maps] == info.channels()
    assert [x.shape[2:] for x in maps] == [tuple(-(-side // stride) for side in size) for stride in info.reduction()]
    assert all(map(torch.equal, maps, model.backbone(image)))
    assert {name.replace('-', '_') for name in list_backbones()} <= set(timm.list_models())
    if name == PYRAMID:
        last = create(name).forward_intermediates(image, indices=2, intermediates_only=True)
        assert [x.shape[1] for x in last] == info.channels()[-2:]
    assert [type(model.get_submodule(module)) for module in info.module_name()]


@pytest.mark.parametrize('name, indices, expected', [
    (PYRAMID, None, (0, 1, 2, 3)), (PYRAMID, 2, (2, 3)), (PYRAMID, (1, -1), (1, 3)), (PYRAMID, [0, 1], (0, 1)),
    (PLAIN, None, (11,)), (PLAIN, 3, (9, 10, 11)), (PLAIN, (2, -2), (2, 10))])
def test_out_indices_are_numbers_of_last_maps_or_indices(name: str, indices: Any, expected: tuple[int, ...]) -> None:
    info = create(name, features_only=True, out_indices=indices).feature_info
    assert info.out_indices == expected
    assert [module.rpartition('.')[2] for module in info.module_name()] == list(map(str, expected))
    assert len(info) == (4 if name == PYRAMID else 12)


@pytest.mark.parametrize('name', [PYRAMID, PLAIN])
def test_forward_and_backward(name: str) -> None:
    model = create(name, num_classes=5, in_chans=4, drop_path_rate=.1).train()
    logits = model(torch.randn(2, 4, 65, 97))
    assert logits.shape == (2, 5) and model.num_classes == 5
    logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.no_weight_decay() <= {name for name, _ in model.named_parameters()}
    assert ('backbone.cls_token' in model.no_weight_decay()) == (name == PLAIN)


@pytest.mark.parametrize('name', [PYRAMID, PLAIN])
@torch.no_grad()
def test_the_head_pools_the_features(name: str) -> None:
    model, image = create(name, num_classes=5), torch.randn(1, 3, 64, 96)
    tokens = model.forward_features(image)
    pooled = tokens[:, 0] if name == PLAIN else tokens.mean(dim=1)
    assert torch.equal(model.forward_head(tokens, pre_logits=True), pooled)
    assert torch.equal(model(image), model.get_classifier()(pooled))
    model.reset_classifier(0)
    assert torch.equal(model(image), pooled) and pooled.shape[1] == model.num_features
    model.to('meta', torch.float64).reset_classifier(7)  # is where and as the backbone is
    assert model(torch.randn(1, 3, 64, 96, device='meta', dtype=torch.float64)).shape == (1, 7)
    assert not model.get_classifier().training
    model = create(PLAIN, cls_token=False, num_register_tokens=4)
    tokens = model.forward_features(image)
    assert tokens.shape[1] == 4 + 4 * 6
    assert torch.equal(model(image), tokens[:, 4:].mean(dim=1))  # registers are not pooled


@pytest.mark.parametrize('features_only', [False, True])
def test_pretrained_weights_are_those_of_the_table(
        features_only: bool, fake_released: Callable[..., dict[str, Tensor]]) -> None:
    norms = {} if features_only else dict(out_indices=(3,), out_norm=True)
    weights = fake_released('cpvt_mm://pyramid-cpvt-small', **norms)
    found = create('pyramid_cpvt_small', pretrained=True, features_only=features_only).backbone.state_dict()
    assert {*weights} <= {*found} and all(torch.equal(found[key], value) for key, value in weights.items())


@pytest.mark.parametrize('kwargs, error, words', [
    (dict(output_stride=16), ValueError, 'output_stride is 16, but pyramid-cpvt-nano has no dilation: leave it out.'),
    (dict(cache_dir='x'), ValueError, "pyramid-cpvt-nano loads the weights of cpvt_mm, not 'x': leave it out."),
    (dict(drop_pth_rate=.1), TypeError, 'drop_pth_rate'),
    (dict(features_only=True, out_indices=5), IndexError, 'the number of last maps is 5, but must be from 1 to 4.'),
    (dict(features_only=True, out_indices=(4,)), ValueError, 'from 0 to 3, or from -4 to -1'),
    (dict(pretrained=True), UserError, 'there are no released weights of pyramid-cpvt-nano')])
def test_wrong_arguments_are_a_sentence(kwargs: dict, error: type[Exception], words: str) -> None:
    assert words in refusal(create, PYRAMID, error=error, **kwargs)
