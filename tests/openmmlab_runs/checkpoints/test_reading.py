"""Checkpoints are read, also with mmengine's log; those that are damaged, or could run code, are refused."""
import argparse
import os
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from safetensors.torch import save_file
from torch import nn

from openmmlab_runs.checkpoints.reading import read_checkpoint, read_weights, readable, unwrap
from openmmlab_runs.checkpoints.restricted import mmengine_log
from openmmlab_runs.errors import MissingFile, UserError
from tests.conftest import refusal


def save(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def test_reads_both_formats_to_the_device_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(dict(weight=torch.ones(2)), tmp_path / 'a.safetensors')
    for path in (save(tmp_path / 'a.pth', dict(weight=torch.ones(2))), tmp_path / 'a.safetensors'):
        assert torch.equal(read_checkpoint(path)['weight'], torch.ones(2))
        assert read_checkpoint(path, 'meta')['weight'].is_meta
    monkeypatch.setitem(sys.modules, 'safetensors', None)
    told = refusal(read_checkpoint, tmp_path / 'a.safetensors')
    assert 'a.safetensors needs a package ' in told and told.endswith(': pip install safetensors.')


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
    torch.save(dict(weight=torch.ones(1000)), path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    for length in range(1, len(content), 37):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=r'checkpoint .*a\.pth (is damaged|cannot be read)'):
            read_checkpoint(path)


WEIGHTS, AVERAGE = dict(weight=torch.ones(2)), dict(weight=torch.zeros(2))


@pytest.mark.parametrize('checkpoint, expected', [
    (WEIGHTS, ('', '', {}, ())), ({**WEIGHTS, 'epoch': 3}, ('', '', {}, ('epoch',))),
    ({**WEIGHTS, 1: torch.ones(1)}, ('', '', {}, ())),  # no name
    (dict(state_dict=WEIGHTS), ('state_dict', '', {}, ())),
    (dict(state_dict=WEIGHTS, meta=dict(epoch=3), optimizer={}),
     ('state_dict', '', dict(meta=dict(epoch=3)), ('optimizer',))),
    (dict(model=WEIGHTS, optimizer={}), ('model', '', {}, ('optimizer',))),
    (dict(ema=WEIGHTS), ('ema', '', {}, ())), (dict(ema_state_dict=WEIGHTS), ('ema_state_dict', '', {}, ())),
    (dict(ema_state_dict=AVERAGE, state_dict=WEIGHTS), ('state_dict', 'ema_state_dict', {}, ('ema_state_dict',))),
    (dict(state_dict_ema=AVERAGE, state_dict=WEIGHTS), ('state_dict', 'state_dict_ema', {}, ('state_dict_ema',))),
    (dict(model_ema=AVERAGE, model=WEIGHTS), ('model', 'model_ema', {}, ('model_ema',))),
    ({'module.weight': WEIGHTS['weight']}, ('', '', {}, ()))])
def test_weights_are_found_in_their_wrapper(checkpoint: dict, expected: tuple, tmp_path: Path) -> None:
    found = read_weights(save(tmp_path / 'a.pth', checkpoint))
    assert list(found.tensors) == ['weight'] and torch.equal(found.tensors['weight'], torch.ones(2))
    assert found[1:] == expected


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    for name in ('no.pth', 'no.safetensors'):
        assert f'{name} does not exist' in refusal(read_checkpoint, tmp_path / name, error=MissingFile)
    assert 'cannot be read' in refusal(read_checkpoint, tmp_path)
    assert 'holds a list' in refusal(read_checkpoint, save(tmp_path / 'list.pth', [torch.ones(1)]))
    for content, words in (({}, ': it has nothing'), (dict(student=WEIGHTS, epoch=3), ': it has student, epoch'),
                           (dict(state_dict=dict(note='x')), "under 'state_dict': it has note")):
        told = refusal(unwrap, content, 'a.pth')
        assert 'a.pth holds no tensors ' in told and words in told


def test_mmengine_gets_the_file_itself_or_a_copy_without_its_own_types(tmp_path: Path) -> None:
    weights = nn.Linear(2, 3).state_dict()
    path = save(tmp_path / 'a.pth', dict(state_dict=weights, meta=dict(iter=1)))
    with readable(path) as local:
        assert local == str(path)
    save_file(weights, tmp_path / 'b.safetensors')
    log = dict(log_scalars=dict(loss=HistoryBuffer([1., 2.], [1, 1])), runtime_info=dict(best=np.float32(0.5)))
    save(tmp_path / 'c.pth', dict(state_dict=weights, message_hub=log, args=argparse.Namespace(lr=0.1)))
    for name in ('b.safetensors', 'c.pth'):
        with readable(tmp_path / name) as local:
            content = torch.load(local, weights_only=True)
            torch.testing.assert_close(dict(content.get('state_dict', content)), dict(weights), rtol=0, atol=0)
        assert not Path(local).exists()
    assert content['message_hub']['log_scalars']['loss']['log_history'].tolist() == [1., 2.]
    assert (content['message_hub']['runtime_info'], content['args']) == (dict(best=0.5), dict(lr=0.1))


Run = Callable[[str], subprocess.CompletedProcess]
VARIABLES = ('TORCH_FORCE_WEIGHTS_ONLY_LOAD', 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD')


class Call:
    """A pickle of it calls a function, and may give a state to what that returns."""

    def __init__(self, function: Callable, *args: object, state: tuple = ()) -> None:
        self.call = (function, args, (1, *state)) if state else (function, args)

    def __reduce__(self) -> tuple:
        return self.call


MAKE, EMPTY, *_ = np.zeros(1).__reduce__()  # as the pickle of an array does
FLOAT = np.dtype('f8')
HOSTILE = {
    'code': Call(os.mkdir, 'hacked'), 'an attribute': Call(getattr, HistoryBuffer, '__init__'),
    'a buffer': Call(np.ndarray, (1,), 'O', b'A' * 8),
    'a buffer of numbers': Call(np.ndarray, (1 << 40,), 'f8', b'A' * 8),
    'objects': Call(MAKE, *EMPTY, state=((1,), np.dtype('O'), False, b'A' * 8)),
    'objects without an array': Call(np.dtype, 'O'),
    'too few numbers': Call(MAKE, *EMPTY, state=((1000,), FLOAT, False, b'A' * 8)),
    'too many numbers': Call(MAKE, *EMPTY, state=((1,), FLOAT, False, b'A' * 16)),
    'no bytes': Call(MAKE, *EMPTY, state=((1,), FLOAT, False, [1.])),
    'a negative size': Call(MAKE, *EMPTY, state=((-1, -1), FLOAT, False, b'A' * 8)),
    'a scalar of objects': Call(np.float64(0).__reduce__()[0], np.dtype('O'), b'A' * 8),
    'a scalar of too few bytes': Call(np.float64(0).__reduce__()[0], FLOAT, b'A' * 4)}


def settings() -> tuple[dict[str, str], set]:
    return dict(os.environ), set(torch.serialization.get_safe_globals())


def test_log_numbers_and_arguments_are_read_and_can_be_written_again(tmp_path: Path) -> None:
    content = dict(loss=HistoryBuffer([1., 2.], [1, 1]), best=np.float64(.5), big=np.array([1, 2], dtype='>i4'),
                   rows=np.asfortranarray(np.arange(6.).reshape(2, 3)), args=argparse.Namespace(lr=.1))
    found = read_checkpoint(save(tmp_path / 'a.pth', content))
    assert found['loss'].mean() == 1.5 and found['best'] == .5 and found['args'].lr == .1
    found['loss'].update(6.)  # as a resumed run does
    assert found['loss'].mean() == 3 and found['loss'].current() == 6
    np.testing.assert_array_equal(found['big'], content['big'])
    np.testing.assert_array_equal(found['rows'], content['rows'])
    written = save(tmp_path / 'b.pth', found).read_bytes()
    assert b'cpvt_mm' not in written  # so that all programs can read it that can read mmengine's
    assert read_checkpoint(tmp_path / 'b.pth')['loss'].mean() == 3


@pytest.mark.parametrize('core', [b'core', b'_core'])
def test_checkpoints_cross_the_versions_of_numpy(core: bytes, tmp_path: Path) -> None:
    path, other = save(tmp_path / 'a.pth', dict(log=HistoryBuffer([3.], [1]))), tmp_path / 'b.pth'
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, 'w') as target:
        for name in source.namelist():
            target.writestr(name, re.sub(rb'numpy\._?core\.', b'numpy.' + core + b'.', source.read(name)))
    assert read_checkpoint(other)['log'].mean() == 3


def test_hostile_files_are_refused_in_a_sentence_and_end_no_process(tmp_path: Path, run_python: Run) -> None:
    for name, payload in HOSTILE.items():
        log = HistoryBuffer([1.], [1])
        log.note = payload
        save(tmp_path / f'{name}.pth', dict(state_dict={}, message_hub=dict(loss=log)))
    done = run_python(f"""
import os
from pathlib import Path
from openmmlab_runs.errors import UserError
from openmmlab_runs.checkpoints.reading import read_checkpoint
for path in Path({str(tmp_path)!r}).glob('*.pth'):
    try:
        read_checkpoint(path)
        print('read', path.stem)
    except UserError as error:
        print('refused' if str(error).endswith('.') and '\\n' not in str(error) else error, path.stem)
print(os.listdir())
""")
    *found, files = done.stdout.splitlines()
    assert sorted(found) == sorted(f'refused {name}' for name in HOSTILE) and files == '[]', done.stderr


@pytest.mark.parametrize('name', ['code', 'a buffer'])
def test_in_the_scope_loaders_read_logs_and_no_code(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in zip(VARIABLES, ('0', '1'), strict=True):
        monkeypatch.setenv(variable, value)
    log = save(tmp_path / 'log.pth', dict(log=HistoryBuffer([1., 2.], [1, 1])))
    evil = save(tmp_path / 'evil.pth', dict(state_dict={}, extra=HOSTILE[name]))
    before = settings()
    monkeypatch.chdir(tmp_path)
    assert 'evil.pth is damaged, or contains code' in refusal(read_checkpoint, evil)
    with mmengine_log():
        with pytest.raises(pickle.UnpicklingError):
            torch.load(evil, weights_only=False)
        read_checkpoint(log)  # a scope within the scope
        assert torch.load(log)['log'].mean() == 1.5
    assert not (tmp_path / 'hacked').exists()
    assert settings() == before
    with pytest.raises(pickle.UnpicklingError):
        torch.load(log, weights_only=True)


def test_scopes_of_threads_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLES[0], raising=False)
    log = save(tmp_path / 'log.pth', dict(log=HistoryBuffer([1., 2.], [1, 1])))
    before = settings()
    with ThreadPoolExecutor(1) as pool:
        with mmengine_log():
            other = pool.submit(read_checkpoint, log)
            assert torch.load(log)['log'].mean() == 1.5 and not other.done()
        assert other.result()['log'].mean() == 1.5
    assert settings() == before
