"""The backbones as models of timm: the checks that timm runs on its own models, and what its arguments mean here."""
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from segmentation_models_pytorch import DPT
from timm.data import resolve_model_data_config
from timm.optim import create_optimizer_v2
from torch import Tensor, nn

import cpvt_mm.timm  # noqa: F401  # registers the models
from cpvt_mm import list_backbones
from cpvt_mm.zoo.members import RELEASED
from openmmlab_tools.checkpoints.reading import read_weights
from tests.helpers import refusal

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


@pytest.mark.parametrize('name', [PYRAMID, 'pvtv2_b0', PLAIN])
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
def test_the_head_pools_the_features_as_timm_does(name: str) -> None:
    model, image = create(name, num_classes=5), torch.randn(2, 3, 64, 96)
    tokens, extra = model.forward_features(image), model.num_prefix_tokens
    mean = tokens[:, extra:].mean(dim=1)
    pooled = tokens[:, 0] if name == PLAIN else mean
    assert extra == (name == PLAIN) and pooled.shape[1] == model.num_features
    assert torch.equal(model.forward_head(tokens, pre_logits=True), pooled)
    assert torch.equal(model(image), model.get_classifier()(pooled))
    model.reset_classifier(0)
    assert torch.equal(model(image), pooled)
    model.reset_classifier(2, '')
    assert torch.equal(model(image), model.head(tokens)) and torch.equal(model.forward_head(tokens, True), tokens)
    model.reset_classifier(0, 'avg')
    assert torch.equal(model(image), mean)
    model.to('meta', torch.float64).reset_classifier(7)  # is where and as the backbone is
    assert model(torch.randn(1, 3, 64, 96, device='meta', dtype=torch.float64)).shape == (1, 7)
    assert model.global_pool == 'avg' and not model.get_classifier().training
    model = create(PLAIN, cls_token=False, num_register_tokens=4)
    tokens = model.forward_features(image)
    assert tokens.shape[1] == 4 + 4 * 6
    assert torch.equal(model(image), tokens[:, 4:].mean(dim=1))  # registers are not pooled


@pytest.mark.parametrize('features_only', [False, True])
def test_timm_knows_how_images_are_prepared(features_only: bool) -> None:
    with torch.device('meta'):
        model = timm.create_model('tipsv2_base', features_only=features_only)
    assert resolve_model_data_config(model).items() >= dict(
        mean=(0., 0., 0.), input_size=(3, 448, 448), crop_pct=1., crop_mode='center').items()


def test_what_timm_says_of_weights_is_what_it_says_of_its_copies() -> None:
    names = [name.replace('-', '_') for name in list_backbones(pretrained=True)]
    # Others are no models of timm.
    on_hub = [name for name in names if not name.startswith(('pvt_', 'mit_')) and name != 'pyramid_cpvt_nano']
    assert {*on_hub} <= {*timm.list_models(pretrained=True)} and PYRAMID not in timm.list_models(pretrained=True)
    for name in on_hub:
        ours, reference = (timm.get_pretrained_cfg(model) for model in (
            name, timm.get_pretrained_cfg(name).hf_hub_id.rpartition('/')[2]))
        assert ours.hf_hub_id == reference.hf_hub_id and ours.classifier == 'head'
        for key in ('input_size', 'mean', 'std', 'crop_pct', 'crop_mode', 'interpolation'):
            assert getattr(ours, key) == getattr(reference, key), (name, key)


@pytest.mark.parametrize('name', [PYRAMID, PLAIN])
def test_layer_decay_is_that_of_the_layers_of_the_backbone(name: str) -> None:
    model = create(name, num_classes=5)
    groups = create_optimizer_v2(model, 'adamw', lr=1., layer_decay=.5).param_groups
    scales = {id(parameter): group['lr_scale'] for group in groups for parameter in group['params']}
    assert scales[id(model.head.weight)] == 1
    for parameter_name, parameter in model.backbone.named_parameters():
        layer, number = model.backbone.get_layer_depth(parameter_name)
        assert scales[id(parameter)] == pytest.approx(.5**(number - 1 - layer))
    coarse = model.group_matcher(coarse=True)
    assert [coarse(f'backbone.{part}.weight') for part in (
        ('stages.0.patch_embed.proj', 'stages.0.blocks.1.norm1', 'stages.2.patch_embed.proj', 'out_norms.3')
        if name == PYRAMID else ('patch_embed.proj', 'blocks.0.norm1', 'blocks.11.norm1', 'norm'))] == (
            [0, 1, 3, 5] if name == PYRAMID else [0, 1, 1, 2])


@pytest.mark.parametrize('with_cp', [False, 'selective'])
@pytest.mark.parametrize('name, block', [(PYRAMID, 'stages.2.blocks.0'), (PLAIN, 'blocks.1')])
def test_gradient_checkpointing_is_set_and_unset(name: str, block: str, with_cp: Any) -> None:
    model, calls = create(name, num_classes=5, with_cp=with_cp).train(), []
    model.backbone.get_submodule(f'{block}.mlp.fc1').register_forward_hook(lambda *args: calls.append(1))
    gradients = []
    for enable in (True, False):
        calls.clear()
        model.zero_grad()
        model.set_grad_checkpointing(enable)
        model(torch.ones(1, 3, 32, 32)).sum().backward()
        assert len(calls) == 1 + enable
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize('name, readout', [(PYRAMID, 'ignore'), (PLAIN, 'cat'), (PLAIN, 'add')])
@torch.no_grad()
def test_dpt_of_smp_takes_it(name: str, readout: str) -> None:
    model = DPT(f'tu-{name}', encoder_weights=None, classes=3, decoder_readout=readout).eval()
    assert model(torch.randn(1, 3, 64, 96)).shape == (1, 3, 64, 96)
    assert model.encoder.has_prefix_tokens == (name == PLAIN)
    maps, tokens = model.encoder(torch.randn(1, 3, 64, 96))
    assert [x.shape[1] for x in maps] == model.encoder.out_channels
    assert [None if x is None else x.shape[1:] for x in tokens] == 4 * [(1, 192) if name == PLAIN else None]


@pytest.mark.parametrize('features_only', [False, True])
def test_pretrained_weights_are_those_of_the_table(
        features_only: bool, fake_released: Callable[..., dict[str, Tensor]]) -> None:
    norms = {} if features_only else dict(out_indices=(3,), out_norm=True)
    weights = fake_released('cpvt_mm://pyramid-cpvt-small', **norms)
    actual = create('pyramid_cpvt_small', pretrained=True, features_only=features_only).backbone.state_dict()
    assert {*weights} <= {*actual} and all(torch.equal(actual[key], value) for key, value in weights.items())


@pytest.mark.parametrize('kwargs, error, words', [
    (dict(output_stride=16), ValueError, 'output_stride is 16, but pyramid-cpvt-nano has no dilation: leave it out.'),
    (dict(cache_dir='x'), TypeError, "has no argument cache_dir"),
    (dict(global_pool='token'), ValueError, "global_pool is 'token', but must be '' or 'avg'."),
    (dict(drop_pth_rate=.1), TypeError, 'drop_pth_rate'),
    (dict(features_only=True, out_indices=5), IndexError, 'the number of last maps is 5, but must be from 1 to 4.'),
    (dict(features_only=True, out_indices=(4,)), ValueError, 'from 0 to 3, or from -4 to -1')])
def test_wrong_arguments_are_a_sentence(kwargs: dict, error: type[Exception], words: str) -> None:
    assert words in refusal(create, PYRAMID, error=error, **kwargs)


def test_weights_that_do_not_exist_are_a_sentence() -> None:
    assert 'there are no released weights of pyramid-cpvt-tiny' in refusal(create, 'pyramid_cpvt_tiny', pretrained=True)


@pytest.mark.parametrize('features_only', [False, True])
def test_nano_has_weights_without_a_download(features_only: bool) -> None:
    weights = read_weights(RELEASED['pyramid-cpvt-nano'].files[0]).tensors
    loaded = create(PYRAMID, pretrained=True, features_only=features_only).backbone.state_dict()
    new = {*loaded} - {*weights}
    assert new == (set() if features_only else {'out_norms.3.weight', 'out_norms.3.bias'})
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in weights.items())
