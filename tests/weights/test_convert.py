import hashlib
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.errors import UserError
from cpvt_mm.weights.convert import TARGETS, convert_checkpoint, publish_model
from tests.conftest import GOLDEN, NARROW, NARROW_PLAIN
from tests.weights.test_pyramid import assert_same

FILES = {'twins': GOLDEN / 'official.pth', 'timm': GOLDEN / 'timm.pth', 'mmseg': GOLDEN / 'mmseg.pth'}


def state_dict(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)['state_dict']


@pytest.mark.parametrize('name', FILES)
@pytest.mark.parametrize('to', TARGETS)
def test_any_format_to_any_other_and_back_is_bit_exact(name: str, to: str, tmp_path: Path) -> None:
    weights = torch.load(FILES[name], weights_only=True)
    there = convert_checkpoint(FILES[name], tmp_path / 'b.pth', to)
    back = convert_checkpoint(tmp_path / 'b.pth', tmp_path / 'c.pth', name)
    assert name in there.source.format.names and to in there.target.names
    assert there.target == back.source.format
    assert_same(state_dict(tmp_path / 'c.pth'), weights)


@pytest.mark.parametrize('to', ['cpvt_mm', 'twins', 'timm', 'mmseg', 'mmpretrain'])
def test_whole_models_keep_prefix_and_other_names(to: str, tmp_path: Path) -> None:
    weights = {f'backbone.{name}': tensor for name, tensor in PyramidCPVT(NARROW).state_dict().items()}
    weights |= {'neck.weight': torch.ones(2), 'norm.weight': torch.ones(3)}
    torch.save(dict(state_dict=weights, meta=dict(epoch=3), optimizer=dict(lr=1.), message_hub={}), tmp_path / 'a.pth')
    done = convert_checkpoint(tmp_path / 'a.pth', tmp_path / 'b.pth', to)
    assert done.source.prefix == 'backbone.' and done.left_out == ('optimizer', 'message_hub')
    written = torch.load(tmp_path / 'b.pth', weights_only=True)
    assert set(written) == {'state_dict', 'meta'} and written['meta'] == dict(epoch=3)
    assert set(written['state_dict']) >= {'neck.weight', 'norm.weight'}
    assert (set(written['state_dict']) == set(weights)) == (to == 'cpvt_mm')
    convert_checkpoint(tmp_path / 'b.pth', tmp_path / 'c.pth')
    assert_same(state_dict(tmp_path / 'c.pth'), weights)


def test_safetensors_are_written_bare_and_read(tmp_path: Path) -> None:
    done = convert_checkpoint(FILES['mmseg'], tmp_path / 'a.safetensors')
    assert done.left_out == ()
    assert set(load_file(tmp_path / 'a.safetensors')) == set(PyramidCPVT(NARROW).state_dict())
    convert_checkpoint(tmp_path / 'a.safetensors', tmp_path / 'b.pth', 'mmseg')
    assert_same(state_dict(tmp_path / 'b.pth'), torch.load(FILES['mmseg'], weights_only=True))
    torch.save(dict(state_dict=load_file(tmp_path / 'a.safetensors'), meta={}), tmp_path / 'c.pth')
    assert convert_checkpoint(tmp_path / 'c.pth', tmp_path / 'd.safetensors').left_out == ('meta',)


@pytest.mark.parametrize('to', ['timm', 'mmpretrain'])
def test_plain_backbones_are_converted_too(to: str, tmp_path: Path) -> None:
    weights = CPVT(NARROW_PLAIN, img_size=64, position_encoding=dict(type='LearnablePE')).state_dict()
    torch.save(weights, tmp_path / 'a.pth')
    convert_checkpoint(tmp_path / 'a.pth', tmp_path / 'b.pth', to)
    assert 'pos_embed' in state_dict(tmp_path / 'b.pth')
    convert_checkpoint(tmp_path / 'b.pth', tmp_path / 'c.pth')
    assert_same(state_dict(tmp_path / 'c.pth'), weights)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='contains a CPVT, which format mmseg does not support: convert it to cpvt'):
        convert_checkpoint(GOLDEN / 'deit_timm.pth', tmp_path / 'a.pth', 'mmseg')
    with pytest.raises(UserError, match=r'folder .*no does not exist: create it'):
        convert_checkpoint(FILES['timm'], tmp_path / 'no/a.pth')
    for name in ('model', 'model.safetensor', 'v1.2'):
        with pytest.raises(UserError, match=f'{name} is not a name for a checkpoint: use the suffix .pth or .safete'):
            convert_checkpoint(FILES['timm'], tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / 'there.pth').write_text('mine')
    with pytest.raises(UserError, match=r'there\.pth exists already: choose another file'):
        convert_checkpoint(FILES['timm'], tmp_path / 'there.pth')
    assert (tmp_path / 'there.pth').read_text() == 'mine'


@pytest.mark.parametrize(('option', 'name'), [
    (dict(sr_mode='pool'), 'blocks.0.attn.sr.proj.weight'),
    (dict(mlp_mode='conv'), 'blocks.0.mlp.conv.weight'),
])
def test_layers_of_options_have_no_names_elsewhere(option: dict[str, str], name: str, tmp_path: Path) -> None:
    torch.save(PyramidCPVT(NARROW, **option).state_dict(), tmp_path / 'a.pth')
    (key, value), = option.items()
    with pytest.raises(UserError, match=re.escape(f"weights are of {key}='{value}' (stages.0.{name}")):
        convert_checkpoint(tmp_path / 'a.pth', tmp_path / 'b.pth', 'timm')
    assert not (tmp_path / 'b.pth').exists()


def trained(path: Path, **more: object) -> Path:
    torch.save(dict(state_dict={'module.weight': torch.ones(3)}, meta=dict(epoch=3), **more), path)
    return path


def test_only_weights_and_meta_are_published_under_their_hash(tmp_path: Path) -> None:
    source = trained(tmp_path / 'epoch_3.pth', optimizer=dict(lr=1.), param_schedulers=[], message_hub={})
    path, left_out = publish_model(source, tmp_path / 'model')
    assert left_out == ('optimizer', 'param_schedulers', 'message_hub')
    assert path.name == f'model-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.pth'
    assert sorted(file.name for file in tmp_path.iterdir()) == ['epoch_3.pth', path.name]
    written = torch.load(path, weights_only=True)
    assert list(written) == ['state_dict', 'meta'] and written['meta'] == dict(epoch=3)
    assert torch.equal(written['state_dict']['weight'], torch.ones(3))


def test_the_same_weights_have_the_same_hash(tmp_path: Path) -> None:
    first, _ = publish_model(trained(tmp_path / 'a.pth', optimizer=dict(lr=1.)), tmp_path / 'b')
    second, _ = publish_model(trained(tmp_path / 'c.pth'), tmp_path / 'd')
    assert first.name[1:] == second.name[1:]


def test_what_cannot_be_published_is_refused(tmp_path: Path) -> None:
    source = trained(tmp_path / 'a.pth')
    with pytest.raises(UserError, match=r'a\.pth exists already'):
        publish_model(source, tmp_path / 'a')
    with pytest.raises(UserError, match=r'folder .*no does not exist'):
        publish_model(source, tmp_path / 'no/b')
    with pytest.raises(UserError, match='does not exist: check the path'):
        publish_model(tmp_path / 'no.pth', tmp_path / 'b')


def test_the_stem_may_end_as_the_file_does(tmp_path: Path) -> None:
    path, _ = publish_model(trained(tmp_path / 'a.pth'), tmp_path / 'model.pth')
    assert path.name.startswith('model-') and path.suffixes == ['.pth']
