from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cpvt_mm import CPVT
from cpvt_mm.errors import UserError
from cpvt_mm.models.grid import resample
from cpvt_mm.stack import require
from cpvt_mm.weights.formats import MMPRETRAIN_VIT, TABLE, TIMM_VIT
from cpvt_mm.weights.renaming import Format
from tests.conftest import GOLDEN, NARROW_PLAIN, pretrained
from tests.weights.test_pyramid import shaken

DEIT = GOLDEN / 'deit_timm.pth'
LEARNABLE = dict(type='LearnablePE')
FORMATS = [TIMM_VIT, MMPRETRAIN_VIT]


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


def test_the_row_of_a_class_token_ends_up_in_the_token() -> None:
    weights = weights_of_deit()
    back = TIMM_VIT.to_theirs(TIMM_VIT.to_ours(weights))
    assert set(back) == set(weights)
    assert torch.equal(back['cls_token'], weights['cls_token'] + weights['pos_embed'][:, :1])
    assert not back['pos_embed'][:, 0].any()
    assert torch.equal(back['pos_embed'][:, 1:], weights['pos_embed'][:, 1:])
    assert all(torch.equal(back[name], weights[name]) for name in weights if name not in ('cls_token', 'pos_embed'))


def test_tables_without_rows_for_class_tokens_are_read() -> None:
    weights = weights_of_deit()
    patches = weights['pos_embed'][:, 1:]
    ours = TIMM_VIT.to_ours({**weights, 'pos_embed': patches})
    assert torch.equal(ours['cls_token'], weights['cls_token'])
    assert torch.equal(ours[TABLE], patches[0].view(4, 4, 48))


@pytest.mark.parametrize('shape, message', [
    ((1, 13, 48), 'has 13 rows, 1 for class tokens, and the others do not form a square'),
    ((17, 48), r'has shape \(17, 48\)'),
])
def test_tables_of_no_square_are_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TIMM_VIT.to_ours({**weights_of_deit(), 'pos_embed': torch.zeros(shape)})


@pytest.mark.parametrize('fmt', FORMATS, ids=str)
@pytest.mark.parametrize('kwargs', [
    dict(), dict(position_encoding=None), dict(position_encoding=LEARNABLE, img_size=(64, 80)),
    dict(position_encoding=dict(type='LearnablePE', ndim=1)),
    dict(position_encoding=dict(type='LearnablePE', ndim=1, grid=(6, 8))),  # as many tokens as channels
    dict(position_encoding=[LEARNABLE, dict(type='PEG')]),
])
def test_other_encodings_have_no_name_elsewhere(kwargs: dict, fmt: Format) -> None:
    weights = CPVT(NARROW_PLAIN, **kwargs).state_dict()
    with pytest.raises(UserError, match=rf'the format {fmt} supports only one LearnablePE on a square grid'):
        fmt.to_theirs(weights)


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


def test_a_table_becomes_a_sequence_where_the_model_has_one() -> None:
    model = pretrained(DEIT, CPVT, img_size=64, position_encoding=dict(type='LearnablePE', ndim=1))
    assert torch.equal(model.position_encoding[0].table, weights_of_deit()['pos_embed'][0, 1:])


def test_a_table_is_dropped_with_a_note_where_the_model_has_none(log: list) -> None:
    pretrained(DEIT, CPVT, position_encoding=None)
    message, = [message for _, message in log if 'format timm' in message]
    assert '100.0 % of' in message and 'its position table is dropped, the backbone has none' in message
    assert message.endswith('left over: pos_embed, head.weight, head.bias')


def test_a_model_with_a_peg_is_not_filled_by_deit(log: list) -> None:
    with pytest.raises(UserError, match=r'lacks 2 of the .* of the CPVT: position_encoding\.0\.convs\.0\.0\.weight'):
        pretrained(DEIT, CPVT)
    pretrained(DEIT, CPVT, init_cfg=dict(allow_missing='position_encoding'))
    assert [message for level, message in log if level == 'WARNING'] == [
        f'checkpoint {DEIT} lacks, as allow_missing allows: position_encoding.0.convs.0.0.weight, '
        'position_encoding.0.convs.0.0.bias']


@pytest.mark.parametrize('name', [
    'reg_token', 'norm_pre.weight', 'blocks.0.ls1.gamma', 'blocks.1.attn.q_norm.weight', 'layers.0.attn.gamma1.weight',
    'pre_norm.bias'])
def test_a_vit_that_computes_something_else_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f'is of a ViT with {name}, which CPVT does not have'):
        TIMM_VIT.to_ours({**weights_of_deit(), name: torch.ones(1)})
