"""Checkpoints are read without what is no plain data; those that are damaged are refused, and no code runs."""
import argparse
import ast
import importlib
import math
import os
import pickle
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from safetensors.torch import save_file
from torch import nn

from openmmlab_tools.checkpoints.reading import Checkpoint, read_checkpoint, read_weights
from openmmlab_tools.checkpoints.restricted import LOCK
from openmmlab_tools.errors import MissingFile
from tests.helpers import refusal


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
    path, old, safe = (tmp_path / name for name in ('a.pth', 'old.pth', 'a.safetensors'))
    weights = dict(weight=torch.ones(1000))
    save_file(weights, safe)
    torch.save(weights, path)
    torch.save(weights, old, _use_new_zipfile_serialization=False)
    content, old_content, safe_content = (file.read_bytes() for file in (path, old, safe))
    for file, contents in ((path, (b'', content[:len(content) // 2], b'hello')),
                           (old, (old_content[:length] for length in range(1, len(old_content), 37))),
                           (safe, (b'', safe_content[:-9], safe_content[:9], content))):
        for part in contents:
            file.write_bytes(part)
            assert re.match(rf'checkpoint {file} (is damaged|cannot be read .*damaged)', refusal(read_checkpoint, file))


def put(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A weight with a value, two others, and zeros."""
    return torch.tensor([[0, value, .5], [-2, 0, 0]], dtype=torch.float64).to(dtype)


@pytest.mark.parametrize('tensor', [
    *(put(value, dtype) for value in (math.nan, math.inf, -math.inf) for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16)),
    put(math.nan, torch.float8_e4m3fn), put(math.inf, torch.float8_e5m2), put(1e300, torch.float64),
    torch.tensor(math.nan), torch.zeros(3).index_fill(0, torch.tensor([1]), -math.inf), nn.Parameter(put(math.inf)),
    put(math.nan)[0, 1].expand(1 << 40)])
@pytest.mark.parametrize('key', ['', 'state_dict', 'model', 'ema_state_dict', 'model_ema'])
def test_values_that_are_not_finite_are_refused_under_any_key(key: str, tensor: torch.Tensor) -> None:
    weights = dict(good=torch.ones(2), bad=tensor)
    checkpoint = {'state_dict': dict(good=torch.ones(2)), key: weights} if key else weights
    told = refusal(Checkpoint('a.pth', checkpoint).weights)
    assert told.startswith('checkpoint a.pth has 1 tensors that are not finite, such as bad ('), told


MASK = torch.full((4, 4), -math.inf).triu(1)
BUFFER = torch.tensor([math.inf, -math.inf, 2])  # such as of an observer


def test_a_mask_passes_and_infinity_that_a_new_model_has_too() -> None:
    for dtype in (torch.float32, torch.float16):
        Checkpoint('a.pth', dict(mask=MASK.to(dtype), weight=torch.ones(1))).weights()
        Checkpoint('a.pth', dict(buffer=BUFFER.to(dtype))).weights(expected=dict(buffer=BUFFER))
    for own in ({}, dict(buffer=BUFFER[:2]), dict(buffer=-BUFFER), dict(buffer=torch.ones(3))):
        assert 'not finite, such as buffer (inf)' in refusal(
            Checkpoint('a.pth', dict(buffer=BUFFER)).weights, expected=own)
    nan = torch.tensor([math.nan])
    assert 'not finite' in refusal(Checkpoint('a.pth', dict(buffer=nan)).weights, expected=dict(buffer=nan))
    meta = dict(weight=torch.empty(2, device='meta'))
    assert Checkpoint('a.pth', meta).weights().tensors == meta


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
    actual = read_weights(save(tmp_path / 'a.pth', checkpoint))
    assert list(actual.tensors) == ['weight'] and torch.equal(actual.tensors['weight'], torch.ones(2))
    assert actual[1:] == expected


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    for name in ('no.pth', 'no.safetensors'):
        assert f'{name} does not exist' in refusal(read_checkpoint, tmp_path / name, error=MissingFile)
    assert 'cannot be read' in refusal(read_checkpoint, tmp_path)
    for content, words in (
            ([torch.ones(1)], 'contains a list'), ({}, 'a.pth contains no tensors .*, but only nothing'),
            (nn.Linear(2, 3), r'contains code or objects other than tensors: save its state_dict alone\.$'),
            (dict(student=WEIGHTS, epoch=3), 'a.pth contains no tensors .*, but only student, epoch'),
            (dict(state_dict=dict(note='x')), "a.pth contains no tensors under 'state_dict', but only note")):
        assert re.search(words, refusal(read_weights, save(tmp_path / 'a.pth', content)))


class Call:
    """A pickle of it calls a function, and may give a state to what that returns."""

    def __init__(self, function: Callable, *args: object, state: object = None) -> None:
        self.call = (function, args, state)

    def __reduce__(self) -> tuple:
        return self.call


CODE = Call(exec, "open('hacked', 'w')")
MAKE, EMPTY, *_ = np.zeros(1).__reduce__()  # as the pickle of an array does
LEFT_OUT = {
    'code': CODE, 'code in a key': {(1, CODE): 2}, 'an import': Call(importlib.import_module, 'hacked'),
    'an attribute': Call(getattr, HistoryBuffer, '__init__'), 'a state': Call(Path, 'a', state=dict(a=CODE)),
    'a buffer of objects': Call(np.ndarray, (1,), 'O', b'A' * 8),
    'a large array': Call(np.ndarray, (1 << 40,), 'f8', b'A' * 8),
    'objects': Call(MAKE, *EMPTY, state=(1, (1,), np.dtype('O'), False, b'A' * 8)), 'a class': [pickle.Unpickler]}
REFUSED = {
    'a command': Call(os.mkdir, 'hacked'),
    'a tensor of code': Call(torch._utils._rebuild_parameter, CODE, True, {}),
    'a subclass of code': Call(torch._utils._rebuild_wrapper_subclass, exec, torch.float32, (1,), (1,), 0,
                               torch.strided, torch.device('cpu'), False),
    'many names': [value for value in vars(ast).values() if isinstance(value, type) and value.__module__ == 'ast']}


@pytest.mark.parametrize('is_new', [True, False])
@pytest.mark.parametrize('name', [*LEFT_OUT, *REFUSED])
def test_what_is_no_plain_data_is_left_out_or_refused_and_nothing_of_it_runs(name: str, is_new: bool, tmp_path: Path
                                                                             ) -> None:
    payload, path, empty = {**LEFT_OUT, **REFUSED}[name], tmp_path / 'a.pth', tmp_path / 'empty'
    torch.save(dict(state_dict=WEIGHTS, hub=dict(log=payload, iter=1)), path, _use_new_zipfile_serialization=is_new)
    empty.mkdir()
    os.chdir(empty)
    with torch.serialization.safe_globals([exec, getattr, np.ndarray, np.dtype, MAKE]):  # as of a careless program
        before = {*torch.serialization.get_safe_globals()}
        if name in REFUSED:
            assert re.search(r'objects other than tensors: save|cannot be read \(', refusal(read_checkpoint, path))
        else:
            assert [*read_checkpoint(path)['hub'].items()][-1:] == [('iter', 1)]
        assert {*torch.serialization.get_safe_globals()} == before and not os.listdir()


@pytest.mark.parametrize('is_new', [True, False])
def test_a_log_is_left_out_and_told(is_new: bool, tmp_path: Path, log: list) -> None:
    path = tmp_path / 'a.pth'
    hub = dict(log_scalars=dict(loss=HistoryBuffer([1.], [1])), runtime_info=dict(iter=3, best=np.float32(1)))
    others = dict(args=argparse.Namespace(lr=.1), rates=[.1, np.float64(.1)], param_schedulers=dict(a=CODE, b=1))
    torch.save(dict(state_dict=WEIGHTS, **others, message_hub=hub), path, _use_new_zipfile_serialization=is_new)
    actual = read_checkpoint(path)
    assert actual.pop('state_dict').keys() == {'weight'}
    assert actual == dict(message_hub=dict(log_scalars={}, runtime_info=dict(iter=3)))
    assert log == [('WARNING', f'checkpoint {path} has objects other than tensors and plain data under args, rates, '
                               'param_schedulers, ...; they are skipped.')]


def test_containers_that_hold_each_other_are_read_once(tmp_path: Path) -> None:
    many: list = [CODE]
    for _ in range(100):
        many = [many, many]  # 2 ** 100 ways to the innermost
    circle: dict = dict(code=CODE)
    circle['circle'] = circle
    actual = read_checkpoint(save(tmp_path / 'a.pth', dict(WEIGHTS, many=many, circle=circle)))
    assert actual.keys() == {'weight', 'circle'} and actual['circle'] == dict(circle=actual['circle'])


def test_a_file_that_is_read_waits_for_another_thread(tmp_path: Path) -> None:
    path = save(tmp_path / 'a.pth', WEIGHTS)
    with ThreadPoolExecutor(1) as pool:
        with LOCK:
            other = pool.submit(read_checkpoint, path)
            time.sleep(.1)
            assert not other.done()
        assert other.result().keys() == {'weight'}
