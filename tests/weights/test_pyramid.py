from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cpvt_mm import PyramidCPVT
from cpvt_mm.errors import UserError
from cpvt_mm.stack import require
from cpvt_mm.weights.formats import FORMATS, MMPRETRAIN_PCPVT, MMSEG_PCPVT, PyramidFormat
from cpvt_mm.weights.renaming import Format
from tests.conftest import GOLDEN, NARROW, golden_cases, pretrained
from tests.refusals import refusal

FOREIGN = [fmt for fmt in FORMATS if isinstance(fmt, PyramidFormat)]


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
@pytest.mark.parametrize(('library', 'fmt'), [('mmseg', MMSEG_PCPVT), ('mmpretrain', MMPRETRAIN_PCPVT)])
def test_is_what_the_classes_of_openmmlab_are(library: str, fmt: Format, tmp_path: Path) -> None:
    theirs, image = shaken(their_pcpvt(library)), torch.randn(1, 3, 64, 96)
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


@pytest.mark.parametrize('library, kwargs, name', [
    ('mmseg', dict(norm_after_stage=True), 'norm_list.0.weight'),
    ('mmpretrain', dict(norm_after_stage=[False, True, False, True]), 'norm_after_stage1.weight'),
])
def test_norms_between_stages_are_refused(library: str, kwargs: dict, name: str, tmp_path: Path) -> None:
    torch.save(their_pcpvt(library, **kwargs).state_dict(), tmp_path / 'a.pth')
    assert f'norms between its stages ({name}), which PyramidCPVT does not have' in (
        refusal(pretrained, tmp_path / 'a.pth'))


@pytest.mark.parametrize('fmt', FOREIGN, ids=str)
@pytest.mark.parametrize('encoding', [
    None, dict(type='RotaryPE'), dict(type='LearnablePE'), [dict(type='PEG'), dict(type='LearnablePE')],
    *(dict(type='PEG', **{name: value}) for name, value in (
        ('kernel_size', 5), ('bias', False), ('conv_type', 'full'), ('conv_type', 'separable'), ('num_layers', 2),
        ('positions', (-1,)), ('positions', (0, 1)))),
])
def test_other_encodings_have_no_name_elsewhere(encoding: dict | list | None, fmt: Format) -> None:
    weights = PyramidCPVT(NARROW, position_encoding=encoding).state_dict()
    message = f'(converted: the format {fmt} supports|the format {fmt} has no name for stages.*cannot be converted)'
    with pytest.raises(UserError, match=message):
        fmt.to_theirs(weights)


@pytest.mark.parametrize('fmt', FOREIGN, ids=str)
def test_norms_on_the_way_out_have_no_name_elsewhere(fmt: Format) -> None:
    assert 'has no name for out_norms.0.weight' in (
        refusal(fmt.to_theirs, PyramidCPVT(NARROW, out_norm=True).state_dict()))


def test_half_an_attention_cannot_be_converted() -> None:
    weights = PyramidCPVT(NARROW).state_dict()
    del weights['stages.0.blocks.0.attn.kv.weight']
    with pytest.raises(UserError, match=r'have .*attn\.q\.weight but not stages\.0\.blocks\.0\.attn\.kv\.weight'):
        MMSEG_PCPVT.to_theirs(weights)
