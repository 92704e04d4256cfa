"""Formats of checkpoints: what is renamed there and back is the same, and what has no place there is refused."""
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.zoo import deit, dino, pvt, pyramid, rope_vit, twins
from cpvt_mm.zoo.families import FORMATS, detect_format
from cpvt_mm.zoo.members import PVT
from cpvt_mm.zoo.renaming import Format
from tests.conftest import GOLDEN, NARROW, NARROW_PLAIN, refusal
from tests.zoo.peers import LINEAR, PVTV2, build

TABLE, PEG = dict(type='LearnablePE'), dict(type='PEG')
DINO, ROPE_VIT = dino.FORMATS, (rope_vit.AXIAL, rope_vit.MIXED)
OF_PVT = (pvt.OF_PVT, pvt.TRANSFORMERS_PVT, pvt.MMDET_PVT)
WITH_TABLE = (deit.TIMM, deit.MMPRETRAIN)
DINOV3 = (dino.TIMM_DINOV3, dino.TRANSFORMERS_DINOV3)


def shaken(model: nn.Module) -> nn.Module:
    """In eval mode, no parameter at its initial value."""
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    model.eval()  # mmpretrain's returns nothing
    return model


def assert_same(weights: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    assert set(weights) == set(others)
    assert all(torch.equal(tensor, others[name]) for name, tensor in weights.items())


def narrow(fmt: Format, **more: Any) -> PyramidCPVT | CPVT:
    """A narrow backbone with the parts of the models of a format, but for other options."""
    if fmt.backbone == 'PyramidCPVT':
        parts = {} if fmt in (pyramid.OURS, *twins.FORMATS) else PVT if fmt in OF_PVT else PVTV2
        return shaken(build(PyramidCPVT, **{'arch': NARROW, **parts, **more}))
    parts: dict[str, Any] = dict(arch=NARROW_PLAIN, img_size=64, position_encoding=TABLE)
    if fmt in DINO:
        parts |= dict(layer_scale=0.5, num_register_tokens=2, position_encoding=fmt.encoding or TABLE)
    if fmt in ROPE_VIT:  # heads of 64 channels
        parts |= dict(arch=dict(embed_dims=128, depth=2, num_heads=2), layer_scale=0.5, position_encoding=fmt.encoding)
    model = shaken(build(CPVT, **parts | more))
    if fmt in DINOV3:  # keys have no bias there
        for block in model.blocks:
            block.attn.kv.bias.data.chunk(2)[0].zero_()
    return model


@pytest.mark.parametrize(('fmt', 'options'), [
    *((fmt, {}) for fmt in FORMATS),
    *((fmt, dict(mlp_mode='swiglu')) for fmt in (deit.TIMM, *DINO)),
    *((fmt, tokens) for fmt in WITH_TABLE for tokens in (dict(cls_token=False), dict(dist_token=True))),
    (deit.TIMM, dict(num_register_tokens=2, layer_scale=0.5)),
    *((fmt, dict(position_encoding=[TABLE, fmt.encoding])) for fmt in ROPE_VIT),
    *((fmt, dict(cls_token=True, out_indices=(3,), out_norm=True)) for fmt in OF_PVT[:2]),
    *((fmt, LINEAR) for fmt in (pvt.OF_PVTV2, pvt.TIMM, pvt.TRANSFORMERS_PVTV2)),
    *((fmt, dict(out_indices=(3,), out_norm=True)) for fmt in (pyramid.OURS, *twins.FORMATS)),
], ids=lambda value: str(value) if isinstance(value, Format) else '-'.join(value))
def test_there_and_back_is_the_same_to_the_bit_and_names_tell_the_format(fmt: Format, options: dict[str, Any]) -> None:
    ours = narrow(fmt, **options).state_dict()
    theirs = fmt.to_theirs(ours)
    assert_same(fmt.to_ours(theirs), ours)
    for prefix in ('', 'backbone.', 'detector.backbone.'):
        names = ['neck.weight', *(prefix + name for name in theirs), 'head.weight']
        assert detect_format(names, 'a.pth') == (fmt, prefix, ())


def test_a_token_keeps_the_row_of_its_table_which_may_be_missing() -> None:
    weights = torch.load(GOLDEN / 'deit_timm.pth', weights_only=True)
    back = deit.TIMM.to_theirs(deit.TIMM.to_ours(weights))
    rows, patches = weights['pos_embed'].split([1, 16], dim=1)
    assert_same(back, {**weights, 'cls_token': weights['cls_token'] + rows,
                       'pos_embed': torch.cat([rows * 0, patches], dim=1)})
    ours = deit.TIMM.to_ours({**weights, 'pos_embed': patches})
    assert torch.equal(ours['cls_token'], weights['cls_token'])
    assert torch.equal(ours[deit.TABLE], patches[0].view(4, 4, 48))
    model = narrow(pvt.TRANSFORMERS_PVT, cls_token=True)
    theirs = pvt.TRANSFORMERS_PVT.to_theirs(model.state_dict())
    table = theirs['encoder.patch_embeddings.3.position_embeddings']
    assert table.shape == (1, 50, 64)
    table[:, 0] += 1.
    assert torch.equal(pvt.TRANSFORMERS_PVT.to_ours(theirs)[pvt.CLS_TOKEN], model.stages[3].cls_token + 1.)


# What the models of a format do not have: options, and what the sentence names.
REFUSED: list[tuple[Format, dict[str, Any], str]] = [
    *((twins.TWINS, options, words) for options, words in (
        (dict(position_encoding=None), 'lack pos_block.0.proj.0.weight'),
        (dict(position_encoding=[PEG, TABLE]), 'no place for stages.0.position_encoding.1.table (56, 56, 16)'),
        (dict(position_encoding=dict(type='PEG', bias=False)), 'lack pos_block.0.proj.0.bias'),
        (dict(position_encoding=dict(type='PEG', num_layers=2)), 'stages.0.position_encoding.0.convs.0.1.weight'),
        (dict(mlp_mode='conv'), 'stages.0.blocks.0.mlp.conv.weight'), (dict(out_norm=True), 'out_norms.0.weight'))),
    *((fmt, options, words) for fmt in OF_PVT for options, words in (
        (dict(position_encoding=PEG), 'convs.0.0.weight'), (PVTV2, 'mlp.conv.weight'),
        (dict(position_encoding=None), 'the weights lack '), (dict(img_size=(224, 320)), 'shape (1, 4480, 16)'))),
    *((fmt, options, words) for fmt in pvt.FORMATS if fmt not in OF_PVT for options, words in (
        (dict(position_encoding=PEG), 'convs.0.0.weight'), (dict(mlp_mode='linear'), 'the weights lack '),
        ({**PVT, 'stage_norm': True}, 'table'), (dict(stage_norm=False, out_norm=True), 'out_norms.0.weight'))),
    *((fmt, options, words) for fmt in WITH_TABLE for options, words in (
        (dict(position_encoding=None), 'lack pos_embed'), (dict(img_size=(64, 80)), 'shape (1, 21, 48)'),
        (dict(position_encoding=dict(type='LearnablePE', ndim=1, grid=(6, 8))), 'shape (48, 48)'),
        (dict(position_encoding=[TABLE, PEG]), 'position_encoding.1.convs.0.0.weight'))),
    *((fmt, dict(layer_scale=None, num_register_tokens=0), 'the weights lack ') for fmt in DINO),
    *((fmt, dict(position_encoding=TABLE), deit.TABLE) for fmt in DINO if fmt.encoding),
    (deit.MMPRETRAIN, dict(layer_scale=0.5), 'blocks.0.ls1.gamma'),
    *((fmt, dict(position_encoding=encodings), words) for fmt in ROPE_VIT for encodings, words in (
        ([fmt.encoding, PEG], 'position_encoding.1.convs'), ([fmt.encoding, TABLE], 'position_encoding.1.table'),
        ([dict(type='LearnablePE', grid=(4, 6)), fmt.encoding], 'shape (1, 24, 128)'))),
    (rope_vit.AXIAL, dict(position_encoding=rope_vit.MIXED.encoding), 'position_encoding.0.frequencies.0')]


@pytest.mark.parametrize(('fmt', 'options', 'words'), REFUSED)
def test_what_a_format_lacks_has_no_place_there(fmt: Format, options: dict[str, Any], words: str) -> None:
    told = refusal(fmt.to_theirs, narrow(fmt, **options).state_dict())
    assert words in told and f'the format {fmt}' in told and 'cannot be converted' in told


def test_a_bias_of_keys_has_no_place_in_dinov3() -> None:
    for fmt in DINOV3:
        weights = narrow(fmt).state_dict()
        weights['blocks.1.attn.kv.bias'][:48] = 1.
        assert 'no place for blocks.1.attn.kv.bias (96,)' in refusal(fmt.to_theirs, weights)


@pytest.mark.parametrize(('fmt', 'more', 'words'), [
    (deit.TIMM, dict(pos_embed=torch.zeros(1, 13, 48)), '(1, 13, 48), but must be (1, rows, channels) with 1 rows'),
    (deit.TIMM, dict(pos_embed=torch.zeros(17, 48)), 'has shape (17, 48)'),
    (deit.TIMM, {'norm_pre.weight': torch.ones(1)}, 'of a model with norm_pre.weight, which CPVT does not have'),
    (deit.TIMM, {'rope.freqs': torch.ones(1)}, 'of a model with rope.freqs, which CPVT does not have'),
    (twins.MMSEG, {'norm_list.0.weight': torch.ones(1)}, 'with norm_list.0.weight, which PyramidCPVT does not have'),
    (pvt.TRANSFORMERS_PVT, {'encoder.patch_embeddings.3.position_embeddings': torch.zeros(1, 48, 64)}, '(1, 48, 64)'),
    (rope_vit.MIXED, {'rope.freqs': torch.ones(2, 2, 4, 16)}, 'heads have 32 channels, but must have 64')])
def test_models_that_differ_are_refused(fmt: Format, more: dict[str, Tensor], words: str) -> None:
    assert words in refusal(fmt.to_ours, {**fmt.to_theirs(narrow(fmt).state_dict()), **more})


def of_the_authors(weights: dict[str, Tensor], mask: float) -> dict[str, Tensor]:
    """Weights of timm's DINOv3 as its authors name them, with a bias of keys that is masked."""
    renamed = {name.replace('gamma_', 'ls').replace('reg_token', 'storage_tokens'): tensor
               for name, tensor in weights.items() if not name.endswith('_bias')}
    renamed = {f'{name}.gamma' if '.ls' in name else name: tensor for name, tensor in renamed.items()}
    for index in range(4):
        q, v = (weights[f'blocks.{index}.attn.{part}_bias'] for part in 'qv')
        renamed[f'blocks.{index}.attn.qkv.bias'] = torch.cat([q, torch.full_like(q, mask), v])
        renamed[f'blocks.{index}.attn.qkv.bias_mask'] = torch.cat([torch.ones(48), torch.zeros(48), torch.ones(48)])
    return {**renamed, 'mask_token': torch.ones(1, 48), 'rope_embed.periods': torch.ones(4)}


@pytest.mark.parametrize('mask', [7., torch.nan])
def test_biases_that_are_masked_or_left_out_are_zeros(mask: float) -> None:
    fmt, weights = dino.TIMM_DINOV3, narrow(dino.TIMM_DINOV3).state_dict()
    theirs = fmt.to_theirs(weights)
    found = fmt.to_ours(of_the_authors(theirs, mask))
    assert {found.pop(name).shape for name in ('mask_token', 'rope_embed.periods')} == {(1, 48), (4,)}
    assert_same(found, weights)
    without = fmt.to_ours({name: tensor for name, tensor in theirs.items() if not name.endswith('_bias')})
    assert_same(without, {name: tensor * 0 if name.endswith(('.q.bias', '.kv.bias')) else tensor
                          for name, tensor in weights.items()})


def test_frequencies_under_the_name_of_the_authors_are_the_same() -> None:
    fmt = rope_vit.MIXED
    ours = narrow(fmt).state_dict()
    theirs = fmt.to_theirs(ours)
    frequencies = theirs.pop('rope.freqs')
    found = fmt.to_ours({**theirs, 'freqs': frequencies.flatten(2), 'freqs_t_x': torch.arange(16.)})
    assert found.pop('freqs_t_x').shape == (16,)
    assert_same(found, ours)


def test_the_first_of_the_shortest_prefixes_is_taken() -> None:
    twins_, theirs = twins.TWINS, twins.TWINS.to_theirs(narrow(twins.TWINS).state_dict())
    names = [prefix + name for prefix in ('teacher.backbone.', 'student.backbone.', 'backbone.') for name in theirs]
    assert detect_format(names, 'a.pth') == (twins_, 'backbone.', ('teacher.backbone.', 'student.backbone.'))
    assert detect_format([name for name in names if not name.startswith('b')], 'a.pth').prefix == 'teacher.backbone.'
    assert detect_format(names, 'a.pth', 'student.backbone') == (twins_, 'student.backbone.', ())  # is given
    assert "no backbone of a known format below 'neck.'" in refusal(detect_format, names, 'a.pth', 'neck')
    names = [*(f'a.{name}' for name in deit.TIMM.signature), *(f'backbone.{name}' for name in twins_.signature)]
    assert detect_format(names, 'a.pth').prefix == 'a.'
    assert detect_format(names, 'a.pth', wanted='PyramidCPVT').prefix == 'backbone.'


def test_other_names_are_refused_with_the_formats_and_the_first_keys() -> None:
    assert refusal(detect_format, [f'layer{i}.weight' for i in range(4)], 'a.pth') == (
        'checkpoint a.pth has no backbone of a known format: it has layer0.weight, layer1.weight, layer2.weight, ...; '
        'use a checkpoint of a known format (for PyramidCPVT cpvt_mm, twins or timm, mmseg, mmpretrain, pvt, '
        'pvtv2 or mit, timm-pvtv2, transformers-pvt, transformers-pvtv2, transformers-segformer, mmdet-pvt, '
        'mmdet-pvtv2 or mmseg-mit; for CPVT cpvt_mm, timm, mmpretrain, timm-dinov3, transformers-dinov2, '
        'transformers-dinov3, timm-rope-axial, timm-rope-mixed).')
