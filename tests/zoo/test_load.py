"""Checkpoints fill a backbone or are refused, and the log tells what was left out."""
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.encodings.resampling import resample
from cpvt_mm.zoo import rope_vit
from cpvt_mm.zoo.families import detect_format
from cpvt_mm.zoo.load import adapt_channels, load_pretrained
from cpvt_mm.zoo.members import PVT
from openmmlab_tools.texts import some
from tests.backbones import GOLDEN, NARROW, pretrained
from tests.helpers import refusal
from tests.zoo.checkpoints import CHECKPOINTS, PEG, TABLE

OFFICIAL, DEIT = GOLDEN / 'official.pth', GOLDEN / 'deit_timm.pth'
OTHER_WIDTHS = dict(arch=dict(NARROW, embed_dims=(16, 32, 40, 72)))
DINOV3 = 'transformers dinov3'


@pytest.fixture
def weights() -> dict[str, Tensor]:
    return PyramidCPVT(NARROW).state_dict()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / 'a.pth'


def assert_filled(model: nn.Module, weights: dict[str, Tensor]) -> None:
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def refused(model: nn.Module, path: Path, **options: Any) -> str:
    """The sentence with which a model refuses a file; it must be unchanged."""
    before = copy.deepcopy(model.state_dict())
    message = refusal(load_pretrained, model, path, **options)
    assert_filled(model, before)
    return message


def test_the_log_tells_format_share_and_what_is_left_over(log: list) -> None:
    model = pretrained(OFFICIAL, out_indices=(0, 1, 2))
    total = sum(parameter.numel() for parameter in model.parameters())
    stage = [name for name in torch.load(OFFICIAL, weights_only=True)
             if name.startswith(('patch_embeds.3.', 'blocks.3.', 'norm.', 'head.', 'pos_block.3.'))]
    assert ('INFO', f"checkpoint {OFFICIAL}: format twins or timm, 100.0 % of the backbone's {total:,} parameters "
            f'filled; left over: {some(stage)}') in log


def below(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in weights.items()}


@pytest.mark.parametrize(('contents', 'init_cfg', 'words'), [
    (lambda own, other: dict(own, **{'neck.bias': torch.ones(1)}), {}, 'parameters filled; left over: neck.bias'),
    (lambda own, other: dict(state_dict={'neck.bias': torch.ones(1), **below('detector.backbone.', own)}), {},
     "filled; weights below 'detector.backbone.'; left over: neck.bias"),
    (lambda own, other: {**below('teacher.backbone.', own), **below('student.backbone.', other)}, {},
     "below 'teacher.backbone.', not 'student.backbone.'"),
    (lambda own, other: {**below('teacher.backbone.', other), **below('student.backbone.', own)},
     dict(prefix='student.backbone'), "weights below 'student.backbone.'; left over"),
    (lambda own, other: dict(state_dict=own, ema_state_dict=below('module.', other)), {},
     'weights of state_dict, not of ema_state_dict')])
def test_where_the_weights_lie(contents: Callable, init_cfg: dict, words: str, weights: dict, path: Path, log: list
                               ) -> None:
    torch.save(contents(weights, {name: tensor + 1 for name, tensor in weights.items()}), path)
    assert_filled(pretrained(path, init_cfg=init_cfg), weights)
    assert [level for level, text in log if words in text] == ['INFO']


# The checkpoint, changed options of the backbone; what is allowed; level and words of what is logged.
@pytest.mark.parametrize(('name', 'changes', 'allowed', 'level', 'words'), [
    ('cpvt_mm pyramid', dict(arch=dict(NARROW, depths=(2, 2, 2, 2))), None, 'WARNING',
     'is from a larger or different PyramidCPVT: this backbone does not have '),
    ('PVT of the authors', dict(cls_token=False), None, 'WARNING',
     'does not have 1 of its tensors: stages.3.cls_token'),
    ('mmseg Twins', dict(norm_eps=1e-6), None, 'WARNING',
     'models of format mmseg have norm_eps 1e-05, but the backbone has 1e-06: set norm_eps=1e-05, unless'),
    ('mmseg Twins', dict(norm_eps=1e-5), None, 'WARNING', ''),
    (DINOV3, dict(norm_eps=1e-6), None, 'WARNING', 'models of format transformers-dinov3 have norm_eps 1e-05, but the '
     'backbone has 1e-06: set norm_eps=1e-05 in arch'),
    (DINOV3, dict(position_encoding=None), None, 'WARNING', '(format transformers-dinov3) was trained with the '
     "position encoding dict(type='RotaryPE', form='dinov3'), but the backbone does not have it."),
    ('timm rope-vit-small-mixed', dict(position_encoding=rope_vit.AXIAL.encoding), None, 'WARNING', 'was trained with '
     "the position encoding dict(type='MixedRotaryPE'), but the backbone does not have"),
    ('timm DeiT', dict(position_encoding=PEG), 'convs', 'WARNING', 'a.pth lacks, as allow_missing allows: '
     'position_encoding.0.convs.0.0.weight, position_encoding.0.convs.0.0.bias'),
    ('timm DeiT', dict(position_encoding=None), None, 'INFO',
     'parameters filled; its position table is dropped, the backbone has none; left over: pos_embed'),
    ('PVT of the authors', dict(position_encoding=PEG), 'position_encoding', 'INFO', 'its position table is dropped')])
def test_what_fits_in_part_is_loaded_and_the_rest_is_told(
        name: str, changes: dict, allowed: str | None, level: str, words: str, path: Path, log: list) -> None:
    weights = CHECKPOINTS[name].weights()
    torch.save(weights, path)
    load_pretrained(model := CHECKPOINTS[name].backbone(**changes), path, allow_missing=allowed)
    state, translated = model.state_dict(), detect_format(weights, path).format.translate(weights)
    assert all(torch.equal(translated[key], state[key]) for key in {*translated} & {*state})
    messages = [message for level_of_message, message in log if level_of_message == level]
    assert len(messages) == bool(words) and words in ''.join(messages)


@pytest.mark.parametrize(('name', 'changes', 'words'), [
    ('cpvt_mm pyramid', OTHER_WIDTHS, 'stages.3.patch_embed.proj.weight (64, 40, 2, 2) instead of (72, 40, 2, 2)'),
    ('mmdet PVT', dict(cls_token=True), '1 missing (stages.3.cls_token)'),
    ('timm DeiT', dict(position_encoding=PEG), '2 missing (position_encoding.0.convs.0.0.weight'),
    (DINOV3, dict(layer_scale=None), '4 left over (blocks.0.ls1.gamma, blocks.0.ls2.gamma, blocks.1.ls1'),
    (DINOV3, dict(num_register_tokens=3), 'register_tokens (1, 4, 24) instead of (1, 3, 24)'),
    (DINOV3, dict(mlp_mode='swiglu'), 'blocks.0.mlp.fc1.weight (96, 24) instead of (128, 24)'),
    (DINOV3, dict(position_encoding=TABLE), 'with 39 tensors: 1 missing (position_encoding.0.t'),
    ('timm rope-vit-small-axial', dict(position_encoding=rope_vit.MIXED.encoding),
     '3 missing (position_encoding.0.freq')])
def test_what_does_not_fit_is_named_and_changes_nothing(name: str, changes: dict, words: str, path: Path) -> None:
    checkpoint = CHECKPOINTS[name]
    torch.save(checkpoint.weights(), path)
    message = refused(checkpoint.backbone(**changes), path, allow_missing='.' if changes is OTHER_WIDTHS else None)
    assert f'a.pth (format {checkpoint.format}) does not fit the {checkpoint.cls.__name__}, with ' in message
    assert words in message


@pytest.mark.parametrize('change, words', [
    (lambda x: x / 0, 'has 1 tensors that are not finite, such as {} ('),
    (lambda x: x.to(torch.int8), '1 of whole numbers ({}); build'),
    (lambda x: None, '1 missing ({}); build it with the arch and the options of the weights')])
def test_damaged_weights_are_refused(change: Callable, words: str, weights: dict, path: Path) -> None:
    name = 'stages.1.blocks.0.mlp.fc1.weight'
    changed = {**weights, name: change(weights[name])}
    torch.save({key: tensor for key, tensor in changed.items() if tensor is not None}, path)
    assert words.format(name) in refused(PyramidCPVT(NARROW), path)


def test_another_backbone_is_told_by_name() -> None:
    told = refused(CHECKPOINTS['timm DeiT'].backbone(), OFFICIAL)
    assert 'holds a PyramidCPVT (format twins or timm), but the backbone is a CPVT' in told
    assert 'holds a CPVT (format timm), but the backbone is a PyramidCPVT' in refused(PyramidCPVT(NARROW), DEIT)
    with torch.device('meta'):
        model = PyramidCPVT(NARROW)
    assert 'the PyramidCPVT is on the meta device, which stores no weights' in refusal(load_pretrained, model, OFFICIAL)


@pytest.mark.parametrize(('allow_missing', 'other'), [
    (r'^stages\.3\.', 'norm'), (['norm', 'attn', 'mlp', 'blocks'], ['attn', 'mlp'])])
def test_what_may_be_missing_stays(allow_missing: object, other: object, weights: dict, path: Path, log: list) -> None:
    gone = [name for name in weights if name.startswith('stages.3.blocks.1.')]
    torch.save({name: tensor.half() for name, tensor in weights.items() if name not in gone}, path)
    model = PyramidCPVT(NARROW)
    before = {name: model.state_dict()[name].clone() for name in gone}
    assert 'missing (stages.3.blocks.1.' in refused(model, path, allow_missing=other)
    load_pretrained(model, path, allow_missing=allow_missing)
    assert_filled(model, {**{name: tensor.half().float() for name, tensor in weights.items()}, **before})
    filled = 1 - sum(weights[name].numel() for name in gone) / sum(tensor.numel() for tensor in weights.values())
    (_, info), warning = [record for record in log if record[0] != 'DEBUG']
    assert f'{int(1000 * filled) / 10} % of the' in info
    assert warning == ('WARNING', f'checkpoint {path} lacks, as allow_missing allows: {some(gone)}')


@pytest.mark.parametrize(('checkpoint', 'name'), [
    ('timm Twins', 'stages.0.patch_embed.proj.weight'), ('timm DeiT', 'patch_embed.proj.weight')])
def test_the_stem_is_adapted_and_the_log_says_so(checkpoint: str, name: str, path: Path, log: list) -> None:
    weights, model = CHECKPOINTS[checkpoint].weights(), CHECKPOINTS[checkpoint].backbone(in_channels=4)
    torch.save(weights, path)
    load_pretrained(model, path)
    rgb = detect_format(weights, path).format.translate(weights)
    assert_filled(model, {**rgb, name: rgb[name][:, [0, 1, 2, 0]] * 3 / 4})  # in turn, at the same scale
    (width, _, *kernel), (_, message) = rgb[name].shape, next(record for record in log if 'adapted' in record[1])
    assert f'; {name} adapted from {(width, 3, *kernel)} to {(width, 4, *kernel)}; ' in message
    assert torch.equal(adapt_channels(rgb[name], 1), rgb[name].sum(dim=1, keepdim=True))


@torch.no_grad()
def test_a_backbone_of_clips_starts_as_the_image_backbone(path: Path, log: list[tuple[str, str]]) -> None:
    flat, deep = PyramidCPVT(NARROW).eval(), PyramidCPVT(NARROW, position_encoding=dict(type='PEG', ndim=3)).eval()
    torch.save(flat.state_dict(), path)
    load_pretrained(deep, path)
    frames = torch.randn(4, 3, 64, 64)
    torch.testing.assert_close(deep(frames, num_frames=4), flat(frames), atol=1e-4, rtol=0)
    kernel = 'stages.0.position_encoding.0.convs.0.0.weight'
    assert any('100.0 %' in text and f'{kernel} adapted from (16, 1, 3, 3) to (16, 1, 3, 3, 3)' in text
               for _, text in log)


@pytest.mark.parametrize('encodings', [[TABLE], [PEG, TABLE]])
def test_a_table_is_resampled_to_the_grid_of_the_model(encodings: list, log: list) -> None:
    model = pretrained(DEIT, CPVT, img_size=(96, 128), position_encoding=encodings,
                       init_cfg=dict(allow_missing='convs'))
    last = len(encodings) - 1
    table = torch.load(DEIT, weights_only=True)['pos_embed'][0, 1:]
    assert torch.equal(model.position_encoding[last].table, resample(table.view(4, 4, 48), (6, 8)))
    message, = [message for _, message in log if 'format timm' in message]
    assert f'position_encoding.{last}.table adapted from (4, 4, 48) to (6, 8, 48)' in message
    assert message.endswith('left over: head.weight, head.bias')
    model = pretrained(DEIT, CPVT, img_size=64, position_encoding=dict(type='LearnablePE', ndim=1))
    assert torch.equal(model.position_encoding[0].table, table)


def test_tables_of_a_pyramid_stand_beside_other_encodings(path: Path) -> None:
    whole = PyramidCPVT(NARROW, **PVT)
    torch.save(whole.state_dict(), path)
    both = pretrained(path, init_cfg=dict(allow_missing='convs'), position_encoding=[PEG, TABLE])
    for ours, stage in zip(both.stages, whole.stages, strict=True):
        assert torch.equal(ours.position_encoding[1].table, stage.position_encoding[0].table)


def test_a_log_names_some_of_many_tensors(tmp_path: Path, log: list[tuple[str, str]]) -> None:
    weights = PyramidCPVT(NARROW).state_dict() | {f'decoder.{index}.weight': torch.ones(1) for index in range(62)}
    torch.save(weights, tmp_path / 'a.pth')
    load_pretrained(PyramidCPVT(NARROW), tmp_path / 'a.pth')
    [message] = [text for _, text in log if 'left over' in text]
    assert message.endswith(' and 57 more') and message.count('decoder.') == 5
