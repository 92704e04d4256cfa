import hashlib
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from cpvt_mm import PyramidCPVT, load_pretrained
from cpvt_mm.zoo.convert import convert_checkpoint
from openmmlab_tools.checkpoints.publishing import publish_model
from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.files import META
from tests.backbones import GOLDEN, NARROW
from tests.helpers import refusal
from tests.zoo.checkpoints import CHECKPOINTS
from tests.zoo.test_renaming import assert_same

MMSEG = GOLDEN / 'mmseg.pth'
PYRAMID = partial(PyramidCPVT, NARROW, out_indices=(3,), out_norm=True)


@pytest.mark.parametrize('name', ['Twins of the authors', 'timm Twins', 'mmseg Twins', 'timm DeiT', 'mmdet PVT'])
@pytest.mark.parametrize('prefix', ['', 'backbone.'])
def test_names_become_those_here_and_other_tensors_stay(name: str, prefix: str, tmp_path: Path) -> None:
    checkpoint = CHECKPOINTS[name]
    weights = {prefix + key: tensor for key, tensor in checkpoint.weights().items()}
    others = {'neck.weight': torch.ones(2), 'neck.norm.weight': torch.ones(3)}
    torch.save(dict(state_dict={**weights, **others}, meta=dict(epoch=3), optimizer=dict(lr=1.), message_hub={}),
               tmp_path / 'a.pth')
    done = convert_checkpoint(tmp_path / 'a.pth', tmp_path / 'b.pth')
    assert (str(done.source.format), done.source.prefix) == (checkpoint.format, prefix)
    assert done.left_out == ('optimizer', 'message_hub')
    written = read_checkpoint(tmp_path / 'b.pth')
    assert set(written) == {'state_dict', 'meta'} and written['meta'] == dict(epoch=3)
    assert all(torch.equal(written['state_dict'].pop(key), tensor) for key, tensor in others.items())
    model = checkpoint.backbone()
    load_pretrained(model, tmp_path / 'a.pth')
    of_backbone = {key.removeprefix(prefix): tensor for key, tensor in written['state_dict'].items()}
    assert_same({key: of_backbone[key] for key in model.state_dict()}, model.state_dict())
    again = convert_checkpoint(tmp_path / 'b.pth', tmp_path / 'c.pth')
    assert str(again.source.format) == 'cpvt_mm'
    assert_same(read_checkpoint(tmp_path / 'c.pth')['state_dict'], {**written['state_dict'], **others})


def test_safetensors_are_written_bare_and_read(tmp_path: Path) -> None:
    assert convert_checkpoint(MMSEG, tmp_path / 'a.safetensors').left_out == ()
    assert set(load_file(tmp_path / 'a.safetensors')) == set(PyramidCPVT(NARROW).state_dict())
    convert_checkpoint(MMSEG, tmp_path / 'b.pth')
    assert_same(read_checkpoint(tmp_path / 'b.pth')['state_dict'], load_file(tmp_path / 'a.safetensors'))


def test_safetensors_keep_what_predictions_need_of_meta(tmp_path: Path) -> None:
    meta = dict(dataset_meta=dict(classes=['a', 'é']), images_of_training=dict(size=[256, 320], scales=None), seed=3)
    convert_checkpoint(MMSEG, tmp_path / 'a.safetensors')
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


@pytest.mark.parametrize(('target', 'words'), [
    ('no/a.pth', 'no does not exist: create it'), ('there.pth', 'there.pth exists already: choose another file'),
    ('v1.2', 'v1.2 is not a name for a checkpoint: use the suffix .pth or .safetensors')])
def test_what_cannot_be_written_is_refused(target: str, words: str, tmp_path: Path) -> None:
    (tmp_path / 'there.pth').write_text('mine')
    assert words in refusal(convert_checkpoint, GOLDEN / 'timm.pth', tmp_path / target)
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
        told = refusal(call, MMSEG, tmp_path / 'a.pth')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert told.endswith('.pth cannot be written (File too large): free space for it, or choose another folder.')
    assert list(tmp_path.iterdir()) == []
    name = 'a.pth' if call is convert_checkpoint else 'a-01234567.pth'
    (tmp_path / f'{name}.999999999.0123456789abcdef.tmp').touch()  # of a killed run
    with monkeypatch.context() as patch:
        write = Path.write_bytes
        patch.setattr(Path, 'write_bytes', lambda path, content: write(path, content[:-1] + b'?'))
        told = refusal(call, MMSEG, tmp_path / 'a.pth')
    assert '.pth was not written, because what was read back differs' in told
    assert list(tmp_path.iterdir()) == []
