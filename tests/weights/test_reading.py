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


def test_reads_safetensors(tmp_path: Path) -> None:
    save_file(dict(weight=torch.ones(2)), tmp_path / 'a.safetensors')
    assert torch.equal(read_checkpoint(tmp_path / 'a.safetensors')['weight'], torch.ones(2))


def test_reads_to_the_device_that_is_asked_for(tmp_path: Path) -> None:
    save_file(dict(weight=torch.ones(2)), tmp_path / 'a.safetensors')
    for path in (save(tmp_path / 'a.pth', dict(weight=torch.ones(2))), tmp_path / 'a.safetensors'):
        for device in ('cpu', 'meta'):
            assert read_checkpoint(path, device)['weight'].device.type == device


def test_without_the_package_safetensors_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(dict(weight=torch.ones(2)), tmp_path / 'a.safetensors')
    monkeypatch.setitem(sys.modules, 'safetensors', None)
    with pytest.raises(UserError, match=r'a\.safetensors needs a package .*: pip install safetensors\.'):
        read_checkpoint(tmp_path / 'a.safetensors')


def test_damaged_files_are_named(tmp_path: Path) -> None:
    whole = save(tmp_path / 'whole.pth', dict(weight=torch.ones(1000)))
    content = whole.read_bytes()
    for name, part in dict(empty=b'', cut=content[:len(content) // 2], text=b'hello').items():
        path = tmp_path / f'{name}.pth'
        path.write_bytes(part)
        with pytest.raises(UserError, match=rf'checkpoint .*{name}\.pth .*damaged'):
            read_checkpoint(path)
    save_file(dict(weight=torch.ones(1000)), tmp_path / 'whole.safetensors')
    content = (tmp_path / 'whole.safetensors').read_bytes()
    for name, part in dict(empty=b'', cut=content[:-9], head=content[:9], torch=whole.read_bytes()).items():
        (tmp_path / f'{name}.safetensors').write_bytes(part)
        with pytest.raises(UserError, match=rf'checkpoint .*{name}\.safetensors cannot be read .*damaged'):
            read_checkpoint(tmp_path / f'{name}.safetensors')
    for name in ('no.pth', 'no.safetensors'):
        with pytest.raises(MissingFile, match=rf'{name} does not exist'):
            read_checkpoint(tmp_path / name)
    with pytest.raises(UserError, match='cannot be read'):
        read_checkpoint(tmp_path)
    with pytest.raises(UserError, match='holds a list'):
        read_checkpoint(save(tmp_path / 'list.pth', [torch.ones(1)]))


@pytest.mark.parametrize('wrap, key, ema_key, left_out', [
    (lambda weights, _: weights, '', '', ()),
    (lambda weights, _: dict(weights, epoch=3), '', '', ('epoch',)),
    (lambda weights, _: dict(state_dict=weights), 'state_dict', '', ()),
    (lambda weights, _: dict(model=weights, optimizer={}), 'model', '', ('optimizer',)),
    (lambda weights, _: dict(ema=weights), 'ema', '', ()),
    (lambda weights, _: dict(ema_state_dict=weights), 'ema_state_dict', '', ()),
    (lambda weights, average: dict(ema_state_dict=average, state_dict=weights), 'state_dict', 'ema_state_dict',
     ('ema_state_dict',)),
    (lambda weights, average: dict(state_dict_ema=average, state_dict=weights), 'state_dict', 'state_dict_ema',
     ('state_dict_ema',)),
    (lambda weights, average: dict(model_ema=average, model=weights), 'model', 'model_ema', ('model_ema',)),
    (lambda weights, _: {f'module.{name}': value for name, value in weights.items()}, '', '', ()),
])
def test_weights_are_found_in_their_wrapper(wrap: Callable[[dict, dict], dict], key: str, ema_key: str,
                                            left_out: tuple[str, ...]) -> None:
    weights, average = dict(weight=torch.ones(2)), dict(weight=torch.zeros(2))
    found = unwrap(wrap(weights, average), 'a.pth')
    assert list(found.tensors) == ['weight'] and torch.equal(found.tensors['weight'], torch.ones(2))
    assert found[1:] == (key, ema_key, {}, left_out)


def test_meta_of_mmengine_is_kept_apart(tmp_path: Path) -> None:
    path = save(tmp_path / 'a.pth', dict(state_dict=dict(weight=torch.ones(2)), meta=dict(epoch=3), optimizer={}))
    assert read_weights(path)[1:] == ('state_dict', '', dict(meta=dict(epoch=3)), ('optimizer',))


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


def test_what_mmengine_cannot_read_does_not_fit(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
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


def test_keys_that_are_no_names_do_not_count() -> None:
    assert unwrap({1: torch.ones(1), 'weight': torch.ones(2)}, 'a.pth').tensors.keys() == {'weight'}
