import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cpvt_mm import CPVT, PyramidCPVT, create_backbone
from cpvt_mm.zoo.dino import TRANSFORMERS_DINOV3
from cpvt_mm.zoo.load import adapt_channels, load_pretrained
from tests.conftest import GOLDEN, NARROW, NARROW_PLAIN, pretrained, refusal

OFFICIAL = GOLDEN / 'official.pth'
DEEP = dict(type='PEG', ndim=3)


@pytest.fixture
def weights() -> dict[str, Tensor]:
    return PyramidCPVT(NARROW).state_dict()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / 'a.pth'


def assert_filled(model: nn.Module, weights: dict[str, Tensor]) -> None:
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_the_log_tells_format_share_and_what_is_left_over(log: list) -> None:
    model = pretrained(OFFICIAL, out_indices=(0, 1, 2))
    total = sum(parameter.numel() for parameter in model.parameters())
    stage = [name for name in torch.load(OFFICIAL, weights_only=True)
             if name.startswith(('patch_embeds.3.', 'blocks.3.', 'norm.', 'head.', 'pos_block.3.'))]
    assert ('INFO', f"checkpoint {OFFICIAL}: format twins or timm, 100.0 % of the backbone's {total:,} parameters "
            f'filled; left over: {", ".join(stage)}') in log


def test_what_a_shallower_arch_leaves_over_is_a_warning(weights: dict, path: Path, log: list) -> None:
    torch.save({name: tensor.half() for name, tensor in weights.items()}, path)
    load_pretrained(model := PyramidCPVT(dict(NARROW, depths=(2, 2, 2, 2))), path)
    assert_filled(model, {name: tensor.half().float() for name, tensor in weights.items()})
    warning, = [message for level, message in log if level == 'WARNING']
    assert 'is from a larger or different PyramidCPVT: this backbone does not have' in warning and (
        'stages.2.blocks.2.norm1.weight' in warning)


def test_another_norm_eps_is_a_warning(log: list) -> None:
    for eps in (1e-5, 1e-6):
        pretrained(GOLDEN / 'mmseg.pth', norm_eps=eps)
    warning, = [message for level, message in log if level == 'WARNING']
    assert warning.startswith('models of format mmseg have norm_eps 1e-05, but the backbone has 1e-06: set norm_eps=1e')


@pytest.mark.parametrize('prefix', ['', 'detector.backbone.'])
def test_the_backbone_of_a_whole_model_is_found(prefix: str, weights: dict, path: Path, log: list) -> None:
    torch.save(dict(state_dict={'neck.bias': torch.ones(1), **{prefix + k: v for k, v in weights.items()}}), path)
    assert_filled(pretrained(path), weights)
    message = next(message for _, message in log if 'format cpvt_mm' in message)
    assert message.endswith('left over: neck.bias')
    assert (f'; weights below {prefix!r}; left' in message) == bool(prefix)


def test_of_two_backbones_the_log_names_both(weights: dict, path: Path, log: list) -> None:
    other = {name: tensor + 1 for name, tensor in weights.items()}
    torch.save({**{f'teacher.backbone.{k}': v for k, v in other.items()},
                **{f'student.backbone.{k}': v for k, v in weights.items()}}, path)
    assert_filled(pretrained(path), other)
    assert any("below 'teacher.backbone.', not 'student.backbone.'" in message for _, message in log)
    assert_filled(pretrained(path, init_cfg=dict(prefix='student.backbone')), weights)


@pytest.mark.parametrize('build, path, init_cfg, words', [
    (partial(PyramidCPVT, dict(NARROW, embed_dims=(16, 32, 40, 72))), OFFICIAL, dict(allow_missing='.'),
     'stages.3.patch_embed.proj.weight (64, 40, 2, 2) instead of (72, 40, 2, 2)'),
    (partial(PyramidCPVT, NARROW), GOLDEN / 'deit_timm.pth', {},
     'holds a CPVT (format timm), but the backbone is a PyramidCPVT'),
    (partial(CPVT, NARROW_PLAIN), OFFICIAL, {},
     'holds a PyramidCPVT (format twins or timm), but the backbone is a CPVT')])
def test_what_does_not_fit_is_named(build: Callable[..., nn.Module], path: Path, init_cfg: dict, words: str) -> None:
    model = build(init_cfg=dict(type='Pretrained', checkpoint=str(path), **init_cfg))
    assert words in refusal(model.init_weights)


def test_a_backbone_on_the_meta_device_is_named() -> None:
    with torch.device('meta'):
        model = PyramidCPVT(NARROW)
    assert 'the PyramidCPVT is on the meta device, which holds no weights' in refusal(load_pretrained, model, OFFICIAL)


def test_less_than_everything_is_an_error_and_changes_nothing(weights: dict, path: Path) -> None:
    gone = [name for name in weights if name.startswith('stages.3.blocks.1.')]
    torch.save({name: tensor for name, tensor in weights.items() if name not in gone}, path)
    model = PyramidCPVT(NARROW)
    before = copy.deepcopy(model.state_dict())
    message = refusal(load_pretrained, model, path)
    assert message.startswith(f'checkpoint {path} (format cpvt_mm) does not fit the PyramidCPVT, with {len(weights)} '
                              f'tensors: {len(gone)} missing ({", ".join(gone[:3])}, ...); build it with the arch')
    assert 'name what may be missing in allow_missing' in message
    assert_filled(model, before)


@pytest.mark.parametrize(('name', 'other', 'words'), [
    ('deit-tiny', 'deit-small', "of arch 'small' for a backbone of 'tiny', does not fit the CPVT"),
    ('dinov3-small', 'dinov3-small-plus', "of arch 'small-plus' for a backbone of 'small', does not fit the CPVT"),
    ('pyramid-cpvt-small', 'pyramid-cpvt-tiny', "of arch 'tiny' for a backbone of 'small', does not fit the Pyramid")])
def test_weights_of_another_arch_are_a_sentence_with_both_names(name: str, other: str, words: str, path: Path) -> None:
    torch.save(create_backbone(other).state_dict(), path)
    assert words in refusal(load_pretrained, create_backbone(name), path)


@pytest.mark.parametrize(('allow_missing', 'other'), [
    (r'^stages\.3\.', 'norm'), (['norm', 'attn', 'mlp', 'blocks'], ['attn', 'mlp'])])
def test_what_may_be_missing_stays_and_is_logged(allow_missing: object, other: object, weights: dict, path: Path,
                                                 log: list) -> None:
    gone = [name for name in weights if name.startswith('stages.3.blocks.1.')]
    torch.save({name: tensor + 1 for name, tensor in weights.items() if name not in gone}, path)
    model = PyramidCPVT(NARROW)
    before = {name: model.state_dict()[name].clone() for name in gone}
    assert 'missing (stages.3.blocks.1.' in refusal(load_pretrained, model, path, allow_missing=other)
    load_pretrained(model, path, allow_missing=allow_missing)
    assert_filled(model, {**{name: tensor + 1 for name, tensor in weights.items()}, **before})
    filled = 1 - sum(weights[name].numel() for name in gone) / sum(tensor.numel() for tensor in weights.values())
    assert any(f'{int(1000 * filled) / 10} % of the' in message for _, message in log)
    assert [record for record in log if record[0] == 'WARNING'] == [
        ('WARNING', f'checkpoint {path} lacks, as allow_missing allows: {", ".join(gone)}')]


@pytest.mark.parametrize('change, words', [
    (lambda x: x / 0, 'has 1 tensors that are not finite, such as {} ('),
    (lambda x: x.to(torch.int8), 'of whole numbers ({}); build')])
def test_weights_that_are_no_numbers_are_refused(change: Callable, words: str, weights: dict, path: Path) -> None:
    name = 'stages.1.blocks.0.mlp.fc1.weight'
    torch.save({**weights, name: change(weights[name])}, path)
    model = PyramidCPVT(NARROW)
    before = copy.deepcopy(model.state_dict())
    assert words.format(name) in refusal(load_pretrained, model, path)
    assert_filled(model, before)


@pytest.mark.parametrize(('cls', 'path', 'name'), [
    (PyramidCPVT, OFFICIAL, 'stages.0.patch_embed.proj.weight'),
    (CPVT, GOLDEN / 'deit_timm.pth', 'patch_embed.proj.weight')])
def test_the_stem_is_adapted_and_the_log_says_so(cls: type, path: Path, name: str, log: list) -> None:
    kwargs = {} if cls is PyramidCPVT else dict(position_encoding=dict(type='LearnablePE'), img_size=64)
    rgb, model = pretrained(path, cls, **kwargs).state_dict(), pretrained(path, cls, in_channels=4, **kwargs)
    assert_filled(model, {**rgb, name: rgb[name][:, [0, 1, 2, 0]] * 3 / 4})  # in turn, at the same scale
    message, = [text for _, text in log if 'adapted' in text]
    old, new = (tuple(weights[name].shape) for weights in (rgb, model.state_dict()))
    assert f'; {name} adapted from {old} to {new}; ' in message
    assert torch.equal(adapt_channels(rgb[name], 1), rgb[name].sum(dim=1, keepdim=True))


@torch.no_grad()
def test_a_backbone_of_clips_starts_as_the_image_backbone(path: Path, log: list[tuple[str, str]]) -> None:
    flat, deep = PyramidCPVT(NARROW).eval(), PyramidCPVT(NARROW, position_encoding=DEEP).eval()
    torch.save(flat.state_dict(), path)
    load_pretrained(deep, path)
    frames = torch.randn(4, 3, 64, 64)
    torch.testing.assert_close(deep(frames, num_frames=4), flat(frames), atol=1e-4, rtol=0)
    kernel = 'stages.0.position_encoding.0.convs.0.0.weight'
    assert any('100.0 %' in text and f'{kernel} adapted from (16, 1, 3, 3) to (16, 1, 3, 3, 3)' in text
               for _, text in log)


DINO = dict(num_register_tokens=2, layer_scale=0.5, norm_eps=1e-5,
            position_encoding=dict(type='RotaryPE', form='dinov3'))


@pytest.fixture
def dinov3(path: Path) -> Path:
    """A narrow DINOv3 in the format of transformers."""
    torch.save(TRANSFORMERS_DINOV3.to_theirs(CPVT(NARROW_PLAIN, **DINO).state_dict()), path)
    return path


@pytest.mark.parametrize('change, words', [
    (dict(layer_scale=None), '8 left over (blocks.0.ls1.gamma, blocks.0.ls2.gamma, blocks.1.ls1'),
    (dict(num_register_tokens=3), 'register_tokens (1, 2, 48) instead of (1, 3, 48)'),
    (dict(mlp_mode='swiglu'), 'blocks.0.mlp.fc1.weight (192, 48) instead of (256, 48)'),
    (dict(position_encoding=dict(type='LearnablePE')), 'with 71 tensors: 1 missing (position_encoding.0.t')])
def test_weights_of_another_family_are_refused_whole(change: dict, words: str, dinov3: Path) -> None:
    model = CPVT(**{'arch': NARROW_PLAIN, **DINO, **change})
    before = copy.deepcopy(model.state_dict())
    assert words in refusal(load_pretrained, model, dinov3)
    assert_filled(model, before)


def test_dinov3_without_its_encoding_is_a_warning(dinov3: Path, log: list) -> None:
    load_pretrained(CPVT(NARROW_PLAIN, **{**DINO, 'position_encoding': None}), dinov3)
    warning, = [message for level, message in log if level == 'WARNING']
    assert f"{dinov3} (format transformers-dinov3) was trained with the position encoding dict(type='Rot" in warning


def test_weights_are_preferred_to_their_average_and_the_log_says_so(weights: dict, path: Path, log: list) -> None:
    average = {f'module.{name}': torch.zeros_like(tensor) for name, tensor in weights.items()}
    torch.save(dict(state_dict=weights, ema_state_dict=average), path)
    assert_filled(pretrained(path), weights)
    assert any('weights of state_dict, not of ema_state_dict' in message for _, message in log)
