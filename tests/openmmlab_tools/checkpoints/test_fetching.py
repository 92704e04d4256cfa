"""Checkpoints that are fetched from an address."""
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from pytest import MonkeyPatch
from safetensors.torch import save

from openmmlab_tools.checkpoints import fetching
from openmmlab_tools.checkpoints.fetching import cache_file, size_of
from openmmlab_tools.checkpoints.reading import read_checkpoint
from tests.helpers import ROOT, refusal
from tests.openmmlab_tools.checkpoints.server import WEIGHTS, Server, fetched, saved, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / 'served') as server:
        yield server


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """The folder that downloads go to; there is none yet."""
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    return tmp_path / 'hub/checkpoints'


CHECKED = f'/model_20220308-{hashlib.sha256(saved()).hexdigest()[:8]}.pth'


@pytest.mark.parametrize('name', [CHECKED, '/a.pth', '/a-20220308.pth', '/step-00010000.pth', '/a.pth?download=true',
                                  '/a.safetensors?download=true'])
def test_a_url_is_fetched_once_and_a_checksum_makes_it_torchs_file(name: str, server: Server, cache: Path) -> None:
    path, _, query = name.partition('?')
    content = save(WEIGHTS) if 'safetensors' in name else saved()
    url = server.add(path, content) + f'?{query}' * bool(query)
    assert [size_of(url), size_of(f'{server.url}/no.pth')] == [len(content), None] and not server.requests
    for _ in range(2):
        assert torch.equal(read_checkpoint(url)['weight'], WEIGHTS['weight'])
    assert server.requests == [path]
    [file] = fetched(cache)
    assert file == cache_file(url).name and (file == path[1:]) == (name == CHECKED)
    server.add(path, b'1234')
    assert size_of(url) == len(content)  # that in the cache


@pytest.mark.parametrize(('address', 'content', 'words'), [
    ('/cut.pth', saved(), r'cannot be fetched \({0}: ValueError: the received file is cut, .* it begins with b.PK'),
    ('/cut.pth', saved(_use_new_zipfile_serialization=False), r'cannot .* the received file is cut'),
    ('/cut.safetensors', save(WEIGHTS), 'cannot .* the received file is cut'),
    ('/empty.pth', b'', 'cannot .* the received file is cut'),
    ('/a-0123abcd.pth', saved(), 'cannot .* invalid hash value .*expected "0123abcd"'),
    ('/page.pth', b'<!DOCTYPE html><title>{Log in}</title>', "cannot .* it begins with b'<!DOCTYPE html>"),
    ('/slow.pth', saved(), 'cannot .*TooLong: no answer in 0 seconds'),
    *((address, b'', 'is not a file of the Hugging Face hub: ') for address in (
        'hf://name', 'hf://owner/', 'hf:///name', 'hf://owner/name@', 'hf://owner/@v1')),
    ('hf://owner/na me', b'', r'cannot be fetched \({0}: HFValidationError: '),
    ('torchvision://resnet50', b'', r'cannot be fetched \(')])
def test_what_is_wrong_is_told_and_not_kept(address: str, content: bytes, words: str, server: Server, cache: Path,
                                            monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, 'WAIT', .4 if 'slow' in address else 3600.)
    if address[0] == '/':
        address = server.add(address, content)
    assert re.match(f'checkpoint {address} {words.replace("{0}", address)}', refusal(read_checkpoint, address))
    assert fetched(cache) == []


@pytest.mark.parametrize(('name', 'damaged', 'words'), [
    (CHECKED, saved().replace(b'\0\0\x80?', b'\0\0\x80@', 1), r'is damaged \(its SHA-256 .*\):'),
    ('/a.pth', saved()[:100], 'cannot be read .*damaged or not a checkpoint;')])
def test_a_sentence_tells_where_to_put_a_file_which_must_be_whole(name: str, damaged: bytes, words: str, cache: Path
                                                                  ) -> None:
    file = cache_file(url := f'http://127.0.0.1:1{name}')
    assert refusal(read_checkpoint, url).endswith(
        'Connection refused>): check the address, the network, and that the cache (TORCH_HOME, HF_HOME) can be '
        f'written. Or download {url} on another machine and save it as {file}. To start from random weights instead, '
        'set init_cfg=None in the config (--cfg-options model.backbone.init_cfg=None), or pass pretrained=False in '
        'Python.')
    file.write_bytes(saved())
    assert torch.equal(read_checkpoint(url)['weight'], WEIGHTS['weight'])
    file.write_bytes(damaged)
    assert re.fullmatch(rf'checkpoint {url} \({file}\) {words} remove this file to fetch it again\.',
                        refusal(read_checkpoint, url))


def test_one_downloads_and_the_others_wait_but_not_forever(server: Server, cache: Path, monkeypatch: MonkeyPatch
                                                           ) -> None:
    urls = [server.add(f'/{folder}/slow.pth', saved()) for folder in 'ab']
    with ThreadPoolExecutor(4) as pool:
        assert all('weight' in checkpoint for checkpoint in pool.map(read_checkpoint, urls * 2))
    assert sorted(server.requests) == ['/a/slow.pth', '/b/slow.pth']
    names = fetched(cache)  # two files, although the addresses end with the same name
    assert len(names) == 2 and all(name.endswith('-slow.pth') for name in names)
    monkeypatch.setattr(fetching, 'WAIT', .1)
    file = cache_file(url := server.add('/a.pth', saved()))
    with FileLock(f'{file}.lock'):
        assert f"Timeout: The file lock '{file}.lock' could not be acquired" in refusal(read_checkpoint, url)


def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    cache.parent.write_text('a file')
    assert f"Not a directory: '{cache}'): check " in refusal(read_checkpoint, 'http://127.0.0.1:1/a.pth')


def test_files_of_the_hub_are_those_of_its_own_cache(server: Server, tmp_path: Path) -> None:
    """In another process, since huggingface_hub reads the variables when it is imported."""
    branch, tag = ('/owner/name/resolve/main/model.safetensors', '/owner/name/resolve/v1/deep/b.pth')
    server.add(branch, save(WEIGHTS))
    server.add(tag, saved())
    code = """
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from openmmlab_tools.checkpoints.fetching import size_of
from openmmlab_tools.checkpoints.reading import read_checkpoint
found = [size_of('hf://owner/name'), size_of('hf://owner/name/no.pth')]
found += [read_checkpoint(address)['weight'].sum().item()
          for address in ('hf://owner/name', 'hf://owner/name@v1/deep/b.pth') for _ in range(2)]
place = dict(repo_id='owner/name', filename='deep/b.pth', revision='v1')
print(*found, size_of('hf://owner/name'), try_to_load_from_cache(**place) == hf_hub_download(**place))
read_checkpoint('hf://owner/name/no.pth')
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT, env={
        **os.environ, 'HF_ENDPOINT': server.url, 'HF_HOME': str(tmp_path), 'HF_TOKEN': 'of-a-variable',
        'TORCH_HOME': str(tmp_path / 'torch')})
    size, told = len(save(WEIGHTS)), done.stderr.splitlines()[-1]
    expected = f'{size} None 1000.0 1000.0 1000.0 1000.0 {size} True'
    assert expected in done.stdout.splitlines(), done.stderr
    assert [path for path in server.requests if path[:5] != '/api/'] == [branch, tag]  # newer ones ask more
    assert server.tokens == {'Bearer of-a-variable'} and not (tmp_path / 'torch').exists()
    assert 'checkpoint hf://owner/name/no.pth cannot be fetched (hf://owner/name/no.pth: ' in told
    assert ': check the address, the network, ' in told and 'Or name a local file. To start from random' in told


def test_a_hub_that_does_not_answer_is_asked_once_and_a_sentence_tells(server: Server, tmp_path: Path) -> None:
    code = """
from openmmlab_tools.checkpoints.fetching import size_of
from openmmlab_tools.checkpoints.reading import read_checkpoint
print(size_of('hf://owner/mute'))
try:
    read_checkpoint('hf://owner/mute')
except Exception as error:
    print(f'{type(error).__name__}: {error}')
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT, env={
        **os.environ, 'HF_ENDPOINT': server.url, 'HF_HOME': str(tmp_path)})
    assert server.requests == ['/owner/mute/resolve/main/model.safetensors'] * 2
    size, fetching, *told = (done.stdout + done.stderr).splitlines()
    assert size == 'None' and fetching.endswith(' fetching hf://owner/mute')
    host = server.url.removeprefix('http://')
    assert len(told) == 1 and told[0].startswith(
        'UserError: checkpoint hf://owner/mute cannot be fetched (hf://owner/mute: ConnectionError: '
        f'{host} does not answer): check the address, the network, and ')


def test_without_huggingface_hub_a_sentence_names_it(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
    assert refusal(read_checkpoint, 'hf://owner/name') == (
        'checkpoint hf://owner/name needs a package that is not installed: pip install huggingface_hub.')


