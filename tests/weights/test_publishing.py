import hashlib
from pathlib import Path

import pytest
import torch

from cpvt_mm.errors import UserError
from cpvt_mm.weights.publishing import publish_model


def save(path: Path, **more: object) -> Path:
    torch.save(dict(state_dict={'module.weight': torch.ones(3)}, meta=dict(epoch=3), **more), path)
    return path


def test_only_weights_and_meta_are_published_under_their_hash(tmp_path: Path) -> None:
    source = save(tmp_path / 'epoch_3.pth', optimizer=dict(lr=1.), param_schedulers=[], message_hub={})
    path, left_out = publish_model(source, tmp_path / 'model')
    assert left_out == ('optimizer', 'param_schedulers', 'message_hub')
    assert path.name == f'model-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.pth'
    assert sorted(file.name for file in tmp_path.iterdir()) == ['epoch_3.pth', path.name]
    written = torch.load(path, weights_only=True)
    assert list(written) == ['state_dict', 'meta'] and written['meta'] == dict(epoch=3)
    assert torch.equal(written['state_dict']['weight'], torch.ones(3))


def test_the_same_weights_have_the_same_hash(tmp_path: Path) -> None:
    first, _ = publish_model(save(tmp_path / 'a.pth', optimizer=dict(lr=1.)), tmp_path / 'b')
    second, _ = publish_model(save(tmp_path / 'c.pth'), tmp_path / 'd')
    assert first.name[1:] == second.name[1:]


def test_what_cannot_be_published_is_refused(tmp_path: Path) -> None:
    source = save(tmp_path / 'a.pth')
    with pytest.raises(UserError, match=r'a\.pth exists already'):
        publish_model(source, tmp_path / 'a')
    with pytest.raises(UserError, match=r'folder .*no does not exist'):
        publish_model(source, tmp_path / 'no/b')
    with pytest.raises(UserError, match='does not exist: check the path'):
        publish_model(tmp_path / 'no.pth', tmp_path / 'b')


def test_the_stem_may_end_as_the_file_does(tmp_path: Path) -> None:
    path, _ = publish_model(save(tmp_path / 'a.pth'), tmp_path / 'model.pth')
    assert path.name.startswith('model-') and path.suffixes == ['.pth']
