import hashlib
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.zoo.convert import convert_checkpoint
from openmmlab_tools.checkpoints.publishing import publish_model
from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.files import META
from tests.conftest import GOLDEN, NARROW, NARROW_PLAIN, refusal
from tests.zoo.test_renaming import assert_same, shaken

TWINS = ('cpvt_mm', 'twins', 'timm', 'mmseg', 'mmpretrain')  # the formats of a pyramid with a PEG
FILES = {'twins': GOLDEN / 'official.pth', 'timm': GOLDEN / 'timm.pth', 'mmseg': GOLDEN / 'mmseg.pth'}


@pytest.mark.parametrize('name', FILES)
@pytest.mark.parametrize('to', TWINS)
def test_any_format_to_any_other_and_back_is_bit_exact(name: str, to: str, tmp_path: Path) -> None:
    weights = read_checkpoint(FILES[name])
    there = convert_checkpoint(FILES[name], tmp_path / 'b.pth', to)
    back = convert_checkpoint(tmp_path / 'b.pth', tmp_path / 'c.pth', name)
    assert name in there.source.format.names and to in there.target.names
    assert there.target == back.source.format
    assert_same(read_checkpoint(tmp_path / 'c.pth')['state_dict'], weights)


PYRAMID = partial(PyramidCPVT, NARROW, out_indices=(3,), out_norm=True)
PLAIN = partial(CPVT, NARROW_PLAIN, img_size=64, position_encoding=dict(type='LearnablePE'))
DISTILLED = partial(CPVT, dict(NARROW_PLAIN, dist_token=True), **PLAIN.keywords)


@pytest.mark.parametrize(('build', 'to'), [
    *((PYRAMID, to) for to in TWINS),
    *((build, to) for build in (partial(PLAIN, cls_token=False), DISTILLED)
      for to in ('cpvt_mm', 'timm', 'mmpretrain'))])
def test_whole_models_keep_prefix_and_other_names(build: Callable[[], nn.Module], to: str, tmp_path: Path) -> None:
    model = shaken(build())
    weights = {f'backbone.{name}': tensor for name, tensor in model.state_dict().items()}
    weights |= {'neck.weight': torch.ones(2), 'norm.weight': torch.ones(3), 'backbone.head.fc.weight': torch.ones(2)}
    torch.save(dict(state_dict=weights, meta=dict(epoch=3), optimizer=dict(lr=1.), message_hub={}), tmp_path / 'a.pth')
    done = convert_checkpoint(tmp_path / 'a.pth', tmp_path / 'b.pth', to)
    assert done.source.prefix == 'backbone.' and done.left_out == ('optimizer', 'message_hub')
    written = read_checkpoint(tmp_path / 'b.pth')
    assert set(written) == {'state_dict', 'meta'} and written['meta'] == dict(epoch=3)
    names = set(written['state_dict'])
    assert names >= {'neck.weight', 'norm.weight', 'backbone.head.fc.weight'}
    own = {name for name in weights if 'stages.' in name or 'position_encoding' in name}
    assert names >= own if to == 'cpvt_mm' else not names & own
    if to != 'cpvt_mm' and isinstance(model, CPVT):
        tokens = (model.cls_token is not None) + (model.dist_token is not None)
        assert written['state_dict']['backbone.pos_embed'].shape == (1, 16 + tokens, 48)
    convert_checkpoint(tmp_path / 'b.pth', tmp_path / 'c.pth')
    assert_same(read_checkpoint(tmp_path / 'c.pth')['state_dict'], weights)


def test_safetensors_are_written_bare_and_read(tmp_path: Path) -> None:
    assert convert_checkpoint(FILES['mmseg'], tmp_path / 'a.safetensors').left_out == ()
    assert set(load_file(tmp_path / 'a.safetensors')) == set(PyramidCPVT(NARROW).state_dict())
    convert_checkpoint(tmp_path / 'a.safetensors', tmp_path / 'b.pth', 'mmseg')
    assert_same(read_checkpoint(tmp_path / 'b.pth')['state_dict'], read_checkpoint(FILES['mmseg']))


def test_safetensors_keep_what_predictions_need_of_meta(tmp_path: Path) -> None:
    meta = dict(dataset_meta=dict(classes=['a', 'é']), images_of_training=dict(size=[256, 320], scales=None), seed=3)
    convert_checkpoint(FILES['mmseg'], tmp_path / 'a.safetensors')
    weights = load_file(tmp_path / 'a.safetensors')
    torch.save(dict(state_dict=weights, meta=dict(meta, token='s3cr3t', steps=torch.ones(2))), tmp_path / 'b.pth')
    assert convert_checkpoint(tmp_path / 'b.pth', tmp_path / 'c.safetensors').left_out == ('meta.token', 'meta.steps')
    there = read_checkpoint(tmp_path / 'c.safetensors')
    assert there['meta'] == dict(meta, token=None)
    assert_same(there['state_dict'], weights)
    convert_checkpoint(tmp_path / 'c.safetensors', tmp_path / 'd.pth')
    assert read_checkpoint(tmp_path / 'd.pth')['meta'] == dict(meta, token=None)
    torch.save(dict(state_dict=weights, meta=[1]), tmp_path / 'e.pth')  # of another program
    assert convert_checkpoint(tmp_path / 'e.pth', tmp_path / 'f.safetensors').left_out == ('meta',)


@pytest.mark.parametrize('text', ['', '[1]', '{', '"a"', '[' * 100_000])
def test_a_header_that_is_no_meta_is_ignored(text: str, tmp_path: Path) -> None:
    save_file(dict(a=torch.ones(1)), tmp_path / 'a.safetensors', {META: text})
    assert [*read_checkpoint(tmp_path / 'a.safetensors')] == ['a']


def test_half_precision_rounds_numbers_and_refuses_those_it_cannot_hold(tmp_path: Path) -> None:
    model = nn.Sequential(PYRAMID(), nn.BatchNorm2d(4))  # which counts batches in whole numbers
    torch.save(model.state_dict(), tmp_path / 'a.pth')
    convert_checkpoint(tmp_path / 'a.pth', tmp_path / 'half.safetensors', half=True)
    assert_same(load_file(tmp_path / 'half.safetensors'), {
        name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in model.state_dict().items()})
    model[1].running_var.fill_(1e5)
    torch.save(model.state_dict(), tmp_path / 'b.pth')
    assert refusal(convert_checkpoint, tmp_path / 'b.pth', tmp_path / 'c.pth', half=True) == (
        '1.running_var has values as large as 100000, which float16 does not hold: convert without --half.')


@pytest.mark.parametrize(('source', 'target', 'to', 'words'), [
    ('deit_timm', 'a.pth', 'mmseg', 'contains a CPVT, which format mmseg does not support: convert it to cpvt'),
    ('timm', 'no/a.pth', 'cpvt_mm', 'no does not exist: create it'),
    ('timm', 'there.pth', 'cpvt_mm', 'there.pth exists already: choose another file'),
    ('timm', 'v1.2', 'cpvt_mm', 'v1.2 is not a name for a checkpoint: use the suffix .pth or .safetensors')])
def test_what_cannot_be_written_is_refused(source: str, target: str, to: str, words: str, tmp_path: Path) -> None:
    (tmp_path / 'there.pth').write_text('mine')
    assert words in refusal(convert_checkpoint, GOLDEN / f'{source}.pth', tmp_path / target, to)
    assert [path.read_text() for path in tmp_path.iterdir()] == ['mine']


def test_only_weights_and_meta_are_published_under_their_hash(tmp_path: Path) -> None:
    source = tmp_path / 'a.pth'
    torch.save(dict(state_dict={'module.weight': torch.ones(3)}, meta=dict(epoch=3), optimizer=dict(lr=1.),
                    param_schedulers=[], message_hub={}), source)
    path, left_out = publish_model(source, tmp_path / 'model')
    assert left_out == ('optimizer', 'param_schedulers', 'message_hub')
    assert path.name == f'model-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.pth'
    assert {*tmp_path.iterdir()} == {source, path}
    written = read_checkpoint(path)
    assert list(written) == ['state_dict', 'meta'] and written['meta'] == dict(epoch=3)
    assert torch.equal(written['state_dict']['weight'], torch.ones(3))
    assert 'a.pth exists already' in refusal(publish_model, source, tmp_path / 'a')


@pytest.mark.parametrize('call', [convert_checkpoint, publish_model])
def test_what_could_not_be_written_whole_leaves_nothing(call: Callable[..., object], tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Writing fails as on a full disk when a file gets larger than so many bytes.
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit[1]))
    try:
        told = refusal(call, FILES['mmseg'], tmp_path / 'a.pth')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert told.endswith('.pth cannot be written (File too large): free space for it, or choose another folder.')
    assert list(tmp_path.iterdir()) == []
    name = 'a.pth' if call is convert_checkpoint else 'a-01234567.pth'
    (tmp_path / f'{name}.999999999.0123456789abcdef.tmp').touch()  # of a killed run
    with monkeypatch.context() as patch:
        write = Path.write_bytes
        patch.setattr(Path, 'write_bytes', lambda path, content: write(path, content[:-1] + b'?'))
        told = refusal(call, FILES['mmseg'], tmp_path / 'a.pth')
    assert '.pth was not written, because what was read back differs' in told
    assert list(tmp_path.iterdir()) == []
