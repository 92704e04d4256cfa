import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from cpvt_mm.errors import MissingFile, UserError
from cpvt_mm.weights.reading import check_fits, load_weights, read_checkpoint, read_weights, unwrap


def save(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def test_reads_both_formats_to_the_device_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(dict(weight=torch.ones(2)), tmp_path / 'a.safetensors')
    for path in (save(tmp_path / 'a.pth', dict(weight=torch.ones(2))), tmp_path / 'a.safetensors'):
        assert torch.equal(read_checkpoint(path)['weight'], torch.ones(2))
        assert read_checkpoint(path, 'meta')['weight'].is_meta
    monkeypatch.setitem(sys.modules, 'safetensors', None)
    with pytest.raises(UserError, match=r'a\.safetensors needs a package .*: pip install safetensors\.'):
        read_checkpoint(tmp_path / 'a.safetensors')


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path, safe = save(tmp_path / 'a.pth', dict(weight=torch.ones(1000))), tmp_path / 'a.safetensors'
    save_file(dict(weight=torch.ones(1000)), safe)
    content, safe_content = path.read_bytes(), safe.read_bytes()
    for file, contents in ((path, (b'', content[:len(content) // 2], b'hello')),
                           (safe, (b'', safe_content[:-9], safe_content[:9], content))):
        for part in contents:
            file.write_bytes(part)
            with pytest.raises(UserError, match=rf'checkpoint {file} .*damaged'):
                read_checkpoint(file)


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    for name in ('no.pth', 'no.safetensors'):
        with pytest.raises(MissingFile, match=rf'{name} does not exist'):
            read_checkpoint(tmp_path / name)
    with pytest.raises(UserError, match='cannot be read'):
        read_checkpoint(tmp_path)
    with pytest.raises(UserError, match='holds a list'):
        read_checkpoint(save(tmp_path / 'list.pth', [torch.ones(1)]))


WEIGHTS, AVERAGE = dict(weight=torch.ones(2)), dict(weight=torch.zeros(2))


@pytest.mark.parametrize('checkpoint, expected', [
    (WEIGHTS, ('', '', {}, ())),
    ({**WEIGHTS, 'epoch': 3}, ('', '', {}, ('epoch',))),
    ({**WEIGHTS, 1: torch.ones(1)}, ('', '', {}, ())),  # no name
    (dict(state_dict=WEIGHTS), ('state_dict', '', {}, ())),
    (dict(state_dict=WEIGHTS, meta=dict(epoch=3), optimizer={}),
     ('state_dict', '', dict(meta=dict(epoch=3)), ('optimizer',))),
    (dict(model=WEIGHTS, optimizer={}), ('model', '', {}, ('optimizer',))),
    (dict(ema=WEIGHTS), ('ema', '', {}, ())),
    (dict(ema_state_dict=WEIGHTS), ('ema_state_dict', '', {}, ())),
    (dict(ema_state_dict=AVERAGE, state_dict=WEIGHTS), ('state_dict', 'ema_state_dict', {}, ('ema_state_dict',))),
    (dict(state_dict_ema=AVERAGE, state_dict=WEIGHTS), ('state_dict', 'state_dict_ema', {}, ('state_dict_ema',))),
    (dict(model_ema=AVERAGE, model=WEIGHTS), ('model', 'model_ema', {}, ('model_ema',))),
    ({'module.weight': WEIGHTS['weight']}, ('', '', {}, ())),
])
def test_weights_are_found_in_their_wrapper(checkpoint: dict, expected: tuple, tmp_path: Path) -> None:
    found = read_weights(save(tmp_path / 'a.pth', checkpoint))
    assert list(found.tensors) == ['weight'] and torch.equal(found.tensors['weight'], torch.ones(2))
    assert found[1:] == expected


@pytest.mark.parametrize('checkpoint, words', [
    ({}, 'none of the keys state_dict, model, .*: it has nothing'),
    (dict(student=dict(weight=torch.ones(1)), epoch=3), 'none of the keys .*: it has student, epoch'),
    (dict(state_dict=dict(note='x')), "under 'state_dict': it has note"),
])
def test_a_dict_without_tensors_is_refused(checkpoint: dict, words: str) -> None:
    with pytest.raises(UserError, match=f'a.pth holds no tensors .*{words}'):
        unwrap(checkpoint, 'a.pth')


def test_what_fits_passes_wrapped_or_bare(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    weights = model.state_dict()
    check_fits(model, save(tmp_path / 'bare.pth', weights))
    check_fits(model, save(tmp_path / 'wrapped.pth', dict(state_dict=weights, meta={})))
    check_fits(model, save(tmp_path / 'parallel.pth', {f'module.{k}': v for k, v in weights.items()}))


def test_what_does_not_fit_is_counted_and_named(tmp_path: Path) -> None:
    path = save(tmp_path / 'other.pth', nn.Sequential(nn.Linear(2, 4), nn.Identity(), nn.Linear(2, 3)).state_dict())
    with pytest.raises(UserError) as caught:
        check_fits(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)), path)
    assert ('2 missing (1.weight, 1.bias); 2 left over (2.weight, 2.bias); 2 of another shape (0.weight, 0.bias)'
            in str(caught.value))


@pytest.mark.parametrize('wrap', [
    lambda weights: weights,
    lambda weights: dict(state_dict=weights, meta={}),
    lambda weights: dict(model=weights, epoch=3),
    lambda weights: {f'module.{name}': value for name, value in weights.items()},
])
def test_weights_are_loaded_whole_under_any_key(wrap: Callable[[dict], dict], tmp_path: Path) -> None:
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    load_weights(model, save(tmp_path / 'a.pth', wrap(other.state_dict())))
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_weights_of_another_model_are_not_loaded(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    before = model.weight.clone()
    path = save(tmp_path / 'a.pth', dict(weight=torch.zeros(3, 2)))
    with pytest.raises(UserError, match=r'a\.pth does not fit the Linear it is for.* 1 missing \(bias\)'):
        load_weights(model, path)
    assert torch.equal(model.weight, before)


def test_what_mmengine_would_not_load_does_not_fit(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    with pytest.raises(UserError, match='2 missing'):
        check_fits(model, save(tmp_path / 'deit.pth', dict(model=model.state_dict())))
    save_file(model.state_dict(), tmp_path / 'a.safetensors')
    with pytest.raises(UserError, match=r'a\.safetensors is a safetensors file, .*convert_checkpoint\.py'):
        check_fits(model, tmp_path / 'a.safetensors')


def test_whatever_a_damaged_file_raises_is_a_sentence(tmp_path: Path) -> None:
    torch.save(dict(weight=torch.ones(1000)), tmp_path / 'whole.pth', _use_new_zipfile_serialization=False)
    content = (tmp_path / 'whole.pth').read_bytes()
    for length in range(1, len(content), 37):
        (tmp_path / 'cut.pth').write_bytes(content[:length])
        with pytest.raises(UserError, match=r'checkpoint .*cut\.pth (is damaged|cannot be read)'):
            read_checkpoint(tmp_path / 'cut.pth')
