"""Formats of checkpoints: how they are told apart, and that their weights give the outputs of other libraries."""
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.models.create import PVT, PVTV2
from cpvt_mm.tokens.grid import resample
from cpvt_mm.weights.formats import FORMATS, TWINS, detect_format
from cpvt_mm.weights.plain_formats import (
    MMPRETRAIN_VIT,
    TABLE,
    TIMM_DINOV3,
    TIMM_VIT,
    TRANSFORMERS_DINOV2,
    TRANSFORMERS_DINOV3,
    PlainFormat,
)
from cpvt_mm.weights.pvt_formats import PVT_FORMATS
from cpvt_mm.weights.renaming import Format
from cpvt_mm.weights.rope_formats import ROPE_FORMATS
from openmmlab_runs.errors import UserError
from openmmlab_runs.libraries import require
from tests.conftest import GOLDEN, NARROW, NARROW_PLAIN, golden_cases, pretrained, refusal
from tests.weights.test_rope_formats import narrow

FOREIGN = [fmt for fmt in FORMATS if fmt.backbone == 'PyramidCPVT' and 'cpvt_mm' not in fmt.names]


def shaken(model: nn.Module) -> nn.Module:
    """In eval mode, no parameter at its initial value."""
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    model.eval()  # mmpretrain's returns nothing
    return model


def assert_same(weights: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    assert set(weights) == set(others)
    assert all(torch.equal(tensor, others[name]) for name, tensor in weights.items())


@torch.no_grad()
@pytest.mark.parametrize('name, norm_eps', [('official', 1e-6), ('timm', 1e-6), ('mmseg', 1e-5)])
def test_files_of_other_libraries_give_their_outputs(name: str, norm_eps: float) -> None:
    model = pretrained(GOLDEN / f'{name}.pth', norm_eps=norm_eps)
    for image, expected in golden_cases(name):
        torch.testing.assert_close(list(model(image)), expected, atol=1e-4, rtol=0)


def their_pcpvt(library: str, **kwargs: object) -> nn.Module:
    lists = {name: list(values) for name, values in NARROW.items()}
    lists.update(patch_sizes=[4, 2, 2, 2], strides=[4, 2, 2, 2])
    if library == 'mmpretrain':
        require('mmpretrain')
        from mmpretrain.models.backbones import PCPVT
        # Its shipped configs set this eps.
        return PCPVT(lists, out_indices=(0, 1, 2, 3), qkv_bias=True, norm_cfg=dict(type='LN', eps=1e-6), **kwargs)
    from mmseg.models.backbones import PCPVT
    return PCPVT(**lists, qkv_bias=True, **kwargs)


@torch.no_grad()
@pytest.mark.parametrize('library', ['mmseg', 'mmpretrain'])
def test_is_what_the_classes_of_openmmlab_are(library: str, tmp_path: Path) -> None:
    theirs, image = shaken(their_pcpvt(library)), torch.randn(1, 3, 64, 96)
    fmt, = (fmt for fmt in FOREIGN if library in fmt.names)
    torch.save(theirs.state_dict(), tmp_path / 'a.pth')
    model = pretrained(tmp_path / 'a.pth', norm_eps=fmt.norm_eps)
    torch.testing.assert_close(model(image), theirs(image), atol=1e-4, rtol=0)
    # In the other direction.
    ours = shaken(PyramidCPVT(NARROW, norm_eps=fmt.norm_eps))
    theirs.load_state_dict(fmt.to_theirs(ours.state_dict()))
    torch.testing.assert_close(ours(image), theirs(image), atol=1e-4, rtol=0)


@torch.no_grad()
def test_the_norm_after_the_last_stage_is_out_norm(tmp_path: Path) -> None:
    theirs = shaken(their_pcpvt('mmpretrain', norm_after_stage=[False, False, False, True]))
    torch.save(theirs.state_dict(), tmp_path / 'a.pth')
    model = pretrained(tmp_path / 'a.pth', out_indices=(3,), out_norm=True)
    image = torch.randn(1, 3, 64, 96)
    torch.testing.assert_close(model(image)[0], theirs(image)[3], atol=1e-4, rtol=0)
    timm = torch.load(GOLDEN / 'timm.pth', weights_only=True)
    model = pretrained(GOLDEN / 'timm.pth', out_indices=(3,), out_norm=True)
    assert torch.equal(model.out_norms['3'].weight, timm['norm.weight'])
    torch.save(their_pcpvt('mmseg', norm_after_stage=True).state_dict(), tmp_path / 'b.pth')
    assert 'norms between its stages (norm_list.0.weight), which PyramidCPVT does not have' in (
        refusal(pretrained, tmp_path / 'b.pth'))


PEG = 'stages.0.position_encoding.0.convs.0.'


@pytest.mark.parametrize('fmt', FOREIGN[:1], ids=str)
@pytest.mark.parametrize(('options', 'words'), [
    (dict(position_encoding=None), f'{PEG}0.weight is missing'),
    (dict(position_encoding=[dict(type='PEG'), dict(type='LearnablePE')]), 'stages.0.position_encoding.1.table diff'),
    *((dict(position_encoding=dict(type='PEG', **{name: value})), words) for name, value, words in (
        ('kernel_size', 5, f'{PEG}0.weight differs'), ('bias', False, f'{PEG}0.bias is missing'),
        ('conv_type', 'full', f'{PEG}0.weight differs'), ('num_layers', 2, f'{PEG}1.weight differs'),
        ('positions', (0, 1), 'stages.0.position_encoding.0.convs.1.0.weight differs'))),
    (dict(sr_mode='pool'), 'stages.0.blocks.0.attn.sr.proj.weight differs'),
    (dict(mlp_mode='conv'), 'stages.0.blocks.0.mlp.conv.weight differs'),
    (dict(out_norm=True), 'out_norms.0.weight differs')])
def test_other_parts_than_those_of_twins_have_no_name_elsewhere(options: dict, words: str, fmt: Format) -> None:
    told = refusal(fmt.to_theirs, PyramidCPVT(NARROW, **options).state_dict())
    assert words in told and f': the format {fmt} has one plain PEG after the first block of each stage' in told


DEIT = GOLDEN / 'deit_timm.pth'
LEARNABLE = dict(type='LearnablePE')
OF_DINO = (TIMM_DINOV3, TRANSFORMERS_DINOV2, TRANSFORMERS_DINOV3)


def dino(fmt: PlainFormat, **kwargs: object) -> CPVT:
    """A narrow DINOv2, or a DINOv3 if the format has no table."""
    encoding = LEARNABLE if fmt.has_table else dict(type='RotaryPE', form='dinov3')
    return CPVT(NARROW_PLAIN, img_size=64, position_encoding=encoding, layer_scale=0.5, num_register_tokens=2, **kwargs)


def names_of(fmt: Format) -> list[str]:
    """The names of a whole backbone in a format."""
    options = {} if fmt not in PVT_FORMATS else PVT if fmt.kernel == 4 else PVTV2
    weights = (PyramidCPVT(NARROW, **options) if fmt.backbone == 'PyramidCPVT' else dino(fmt) if fmt in OF_DINO else
               narrow(fmt.encoding) if fmt in ROPE_FORMATS else
               CPVT(NARROW_PLAIN, img_size=64, position_encoding=LEARNABLE)).state_dict()
    return list(weights if 'cpvt_mm' in fmt.names else fmt.to_theirs(weights))


@pytest.mark.parametrize('fmt', FORMATS, ids=lambda fmt: f'{fmt.backbone}-{fmt}')
@pytest.mark.parametrize('prefix', ['', 'backbone.', 'detector.backbone.'])
def test_names_tell_format_and_prefix(prefix: str, fmt: Format) -> None:
    names = ['neck.weight', *(prefix + name for name in names_of(fmt)), 'head.weight']
    assert detect_format(names, 'a.pth') == (fmt, prefix, ())


def test_the_first_of_the_shortest_prefixes_is_taken() -> None:
    names = [prefix + name for prefix in ('teacher.backbone.', 'student.backbone.', 'backbone.')
             for name in names_of(TWINS)]
    assert detect_format(names, 'a.pth') == (TWINS, 'backbone.', ('teacher.backbone.', 'student.backbone.'))
    assert detect_format([name for name in names if not name.startswith('b')], 'a.pth').prefix == 'teacher.backbone.'
    assert detect_format(names, 'a.pth', 'student.backbone') == (TWINS, 'student.backbone.', ())  # is given
    assert "no backbone of a known format below 'neck.'" in refusal(detect_format, names, 'a.pth', 'neck')
    names = [*(f'a.{name}' for name in TIMM_VIT.signature), *(f'backbone.{name}' for name in TWINS.signature)]
    assert detect_format(names, 'a.pth').prefix == 'a.'
    assert detect_format(names, 'a.pth', wanted='PyramidCPVT').prefix == 'backbone.'


def test_other_names_are_refused_with_the_formats_and_the_first_keys() -> None:
    assert refusal(detect_format, [f'layer{i}.weight' for i in range(4)], 'a.pth') == (
        'checkpoint a.pth has no backbone of a known format: it has layer0.weight, layer1.weight, layer2.weight, ...; '
        'use a checkpoint of a known format (for PyramidCPVT cpvt_mm, twins or timm, mmseg, mmpretrain, pvt, '
        'pvtv2 or mit, timm-pvtv2, transformers-pvt, transformers-pvtv2, transformers-segformer, mmdet-pvt, '
        'mmdet-pvtv2 or mmseg-mit; for CPVT cpvt_mm, timm, timm-dinov3, mmpretrain, transformers-dinov2, '
        'transformers-dinov3, timm-rope-axial, timm-rope-mixed).')


@pytest.mark.parametrize('mlp_mode', ['linear', 'swiglu'])
@pytest.mark.parametrize('fmt', [TIMM_VIT, *OF_DINO], ids=str)
def test_dino_in_another_format_and_back_is_bit_exact(fmt: PlainFormat, mlp_mode: str) -> None:
    ours = shaken(dino(fmt, mlp_mode=mlp_mode)).state_dict()
    if not fmt.has_table:
        for index in range(4):
            ours[f'blocks.{index}.attn.kv.bias'][:48] = 0
    theirs = fmt.to_theirs(ours)
    assert detect_format(theirs, 'a.pth').format is fmt
    assert_same(fmt.to_ours(theirs), ours)


@pytest.mark.parametrize('fmt', OF_DINO, ids=str)
def test_what_dino_does_not_have_has_no_name_there(fmt: PlainFormat) -> None:
    encoding = LEARNABLE if fmt.has_table else None
    weights = CPVT(NARROW_PLAIN, img_size=64, position_encoding=encoding).state_dict()
    assert 'the weights lack layer scale or registers' in refusal(fmt.to_theirs, weights)
    if not fmt.has_table:
        weights = shaken(dino(fmt)).state_dict()
        assert f'the format {fmt} has no keys with a bias' in refusal(fmt.to_theirs, weights)
        assert "only dict(type='RotaryPE'" in refusal(fmt.to_theirs, {**weights, TABLE: torch.ones(2, 2, 48)})


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
    theirs = TIMM_DINOV3.to_theirs(dino(TIMM_DINOV3).state_dict())
    expected, found = TIMM_DINOV3.to_ours(theirs), TIMM_DINOV3.to_ours(of_the_authors(theirs, mask))
    assert {name for name in found if name not in expected} == {'mask_token', 'rope_embed.periods'}
    assert_same({name: found[name] for name in expected}, expected)
    without = {name: tensor for name, tensor in theirs.items() if not name.endswith('_bias')}
    assert_same(TIMM_DINOV3.to_ours(without), expected)


def weights_of_deit() -> dict[str, Tensor]:
    return torch.load(DEIT, weights_only=True)


def their_vit(distilled: bool) -> nn.Module:
    require('mmpretrain')
    from mmpretrain.models.backbones import DistilledVisionTransformer, VisionTransformer
    arch = dict(embed_dims=48, num_layers=4, num_heads=3, feedforward_channels=192)
    cls = DistilledVisionTransformer if distilled else VisionTransformer
    return shaken(cls(arch=arch, img_size=64, patch_size=16, out_type='cls_token'))


@torch.no_grad()
@pytest.mark.parametrize('out_type', ['raw', 'cls_token'])
def test_with_a_learnable_table_it_is_deit(out_type: str) -> None:
    weights = weights_of_deit()
    arrays = {name: torch.from_numpy(array) for name, array in np.load(GOLDEN / 'deit_timm_io.npz').items()}
    output, = pretrained(DEIT, CPVT, img_size=64, position_encoding=LEARNABLE, out_type=out_type)(arrays['input'])
    if out_type == 'raw':
        torch.testing.assert_close(output, arrays['tokens'], atol=1e-4, rtol=0)
        output = output[:, 0]
    logits = output @ weights['head.weight'].T + weights['head.bias']
    torch.testing.assert_close(logits, arrays['logits'], atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize('distilled', [False, True])
def test_is_the_vit_of_mmpretrain(distilled: bool, tmp_path: Path) -> None:
    options = dict(img_size=64, position_encoding=LEARNABLE, out_type='cls_token', dist_token=distilled)
    theirs, image = their_vit(distilled), torch.randn(2, 3, 64, 64)
    torch.save(theirs.state_dict(), tmp_path / 'a.pth')
    model = pretrained(tmp_path / 'a.pth', CPVT, **options)
    torch.testing.assert_close(model(image)[0], theirs(image)[0], atol=1e-4, rtol=0)
    ours = shaken(CPVT(NARROW_PLAIN, **options))
    theirs.load_state_dict(MMPRETRAIN_VIT.to_theirs(ours.state_dict()))
    torch.testing.assert_close(ours(image)[0], theirs(image)[0], atol=1e-4, rtol=0)


def test_the_row_of_a_class_token_ends_up_in_the_token_and_may_be_missing() -> None:
    weights = weights_of_deit()
    back = TIMM_VIT.to_theirs(TIMM_VIT.to_ours(weights))
    assert set(back) == set(weights)
    assert torch.equal(back['cls_token'], weights['cls_token'] + weights['pos_embed'][:, :1])
    assert not back['pos_embed'][:, 0].any()
    assert torch.equal(back['pos_embed'][:, 1:], weights['pos_embed'][:, 1:])
    assert all(torch.equal(back[name], weights[name]) for name in weights if name not in ('cls_token', 'pos_embed'))
    patches = weights['pos_embed'][:, 1:]
    ours = TIMM_VIT.to_ours({**weights, 'pos_embed': patches})
    assert torch.equal(ours['cls_token'], weights['cls_token'])
    assert torch.equal(ours[TABLE], patches[0].view(4, 4, 48))
    for more, words in ((dict(pos_embed=torch.zeros(1, 13, 48)), 'has 13 rows, 1 for class tokens, and the others do'),
                        (dict(pos_embed=torch.zeros(17, 48)), 'has shape (17, 48)'),
                        ({'norm_pre.weight': torch.ones(1)}, 'is of a ViT with norm_pre.weight, which CPVT does n')):
        assert words in refusal(TIMM_VIT.to_ours, {**weights, **more})


@pytest.mark.parametrize('fmt', [TIMM_VIT, MMPRETRAIN_VIT], ids=str)
@pytest.mark.parametrize('kwargs', [
    dict(position_encoding=None), dict(position_encoding=LEARNABLE, img_size=(64, 80)),
    dict(position_encoding=dict(type='LearnablePE', ndim=1, grid=(6, 8))),  # as many tokens as channels
    dict(position_encoding=[LEARNABLE, dict(type='PEG')])])
def test_other_encodings_than_of_a_vit_have_no_name_elsewhere(kwargs: dict, fmt: Format) -> None:
    assert f'the format {fmt} supports only one LearnablePE on a square grid' in (
        refusal(fmt.to_theirs, CPVT(NARROW_PLAIN, **kwargs).state_dict()))


@pytest.mark.parametrize('encodings', [[LEARNABLE], [dict(type='PEG'), LEARNABLE]])
def test_a_table_is_resampled_to_the_grid_of_the_model(encodings: list, log: list) -> None:
    model = pretrained(DEIT, CPVT, img_size=(96, 128), position_encoding=encodings,
                       init_cfg=dict(allow_missing='convs'))
    table = weights_of_deit()['pos_embed'][0, 1:].view(4, 4, 48)
    last = len(encodings) - 1
    assert torch.equal(model.position_encoding[last].table, resample(table, (6, 8)))
    message, = [message for _, message in log if message.startswith('checkpoint') and 'format timm' in message]
    assert f'position_encoding.{last}.table adapted from (4, 4, 48) to (6, 8, 48)' in message
    assert message.endswith('left over: head.weight, head.bias')


def test_a_table_becomes_a_sequence_or_is_dropped_with_a_note_as_the_model_has_it(log: list) -> None:
    model = pretrained(DEIT, CPVT, img_size=64, position_encoding=dict(type='LearnablePE', ndim=1))
    assert torch.equal(model.position_encoding[0].table, weights_of_deit()['pos_embed'][0, 1:])
    log.clear()
    pretrained(DEIT, CPVT, position_encoding=None)
    message, = [message for _, message in log if 'format timm' in message]
    assert '100.0 % of' in message and 'its position table is dropped, the backbone has none' in message
    assert message.endswith('left over: pos_embed, head.weight, head.bias')


def test_a_model_with_a_peg_is_not_filled_by_deit(log: list) -> None:
    with pytest.raises(UserError, match=r'the CPVT, .* 2 missing \(position_encoding\.0\.convs\.0\.0\.weight'):
        pretrained(DEIT, CPVT)
    pretrained(DEIT, CPVT, init_cfg=dict(allow_missing='position_encoding'))
    assert [message for level, message in log if level == 'WARNING'] == [
        f'checkpoint {DEIT} lacks, as allow_missing allows: position_encoding.0.convs.0.0.weight, '
        'position_encoding.0.convs.0.0.bias']
