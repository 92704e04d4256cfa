"""Files that are fetched from an address, and the released ones that have a name."""
import hashlib
import io
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from pytest import MonkeyPatch
from safetensors.torch import save

from cpvt_mm import PLAIN_ARCHS, PYRAMID_ARCHS, PyramidCPVT
from cpvt_mm.zoo.families import FORMATS
from cpvt_mm.zoo.load import load_pretrained
from cpvt_mm.zoo.members import RELEASED, Member
from openmmlab_tools.checkpoints import fetching
from openmmlab_tools.checkpoints.fetching import CHECKSUM, cache_file, size_of
from openmmlab_tools.checkpoints.reading import read_checkpoint, read_weights
from tests.conftest import GOLDEN, NARROW, ROOT, refusal

WEIGHTS = dict(weight=torch.ones(1000))


def saved(**kwargs: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(WEIGHTS, buffer, **kwargs)
    return buffer.getvalue()


class Handler(SimpleHTTPRequestHandler):
    """Serves files with a commit and a tag, as the hub does; 'slow' pauses in the middle, 'cut' ends there, and 'mute'
    does not answer.
    """
    server: 'Server'

    def do_HEAD(self) -> None:
        if 'mute' in self.path:
            self.server.requests.append(self.path)
        else:
            super().do_HEAD()

    def end_headers(self) -> None:
        if not self.path.startswith('/api/'):
            self.server.tokens.add(self.headers['Authorization'])
        self.send_header('ETag', Path(self.path).name)
        self.send_header('X-Repo-Commit', '0123456789abcdef' * 2 + '01234567')
        super().end_headers()

    def copyfile(self, source: io.BufferedIOBase, target: io.BufferedIOBase) -> None:
        self.server.requests.append(self.path.partition('?')[0])
        content = source.read()
        target.write(content[:len(content) // 2])
        time.sleep('slow' in self.path)
        if 'cut' not in self.path:
            target.write(content[len(content) // 2:])

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Serves a folder. `requests` are the paths of downloads, and `tokens` those of all requests for files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(('127.0.0.1', 0), partial(Handler, directory=folder))
        self.folder, self.url = folder, f'http://127.0.0.1:{self.server_port}'
        self.requests, self.tokens = [], set()

    def add(self, path: str, content: bytes) -> str:
        file = self.folder / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return self.url + path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / 'served') as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """The folder that downloads go to; there is none yet."""
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    return tmp_path / 'hub/checkpoints'


def kept(cache: Path) -> list[str]:
    """Names of files that are no locks, and that torch does not still write."""
    return sorted(path.name for path in cache.glob('*') if path.suffix not in ('.lock', '.partial'))


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
    [file] = kept(cache)
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
    ('torchvision://resnet50', b'', r'cannot be fetched \('),
    ('cpvt_mm://pyramid-cpvt-smal', b'', 'is not .*: did you mean pyramid-cpvt-small; there are cpvt_mm://pyramid-')])
def test_what_is_wrong_is_told_and_not_kept(address: str, content: bytes, words: str, server: Server, cache: Path,
                                            monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, 'WAIT', .4 if 'slow' in address else 3600.)
    if address[0] == '/':
        address = server.add(address, content)
    assert re.match(f'checkpoint {address} {words.replace("{0}", address)}', refusal(read_checkpoint, address))
    assert kept(cache) == []


@pytest.mark.parametrize(('name', 'damaged', 'words'), [
    (CHECKED, saved().replace(b'\0\0\x80?', b'\0\0\x80@', 1), r'is damaged \(its SHA-256 .*\):'),
    ('/a.pth', saved()[:100], 'cannot be read .*damaged or not a checkpoint;')])
def test_a_sentence_tells_where_to_put_a_file_which_must_be_whole(name: str, damaged: bytes, words: str, cache: Path
                                                                  ) -> None:
    file = cache_file(url := f'http://127.0.0.1:1{name}')
    assert refusal(read_checkpoint, url).endswith(
        'Connection refused>): check the address, the network and that the cache (TORCH_HOME, HF_HOME) can be written, '
        f'or download {url} elsewhere and save it as {file}, or train without it (init_cfg=None, on the command line '
        '--cfg-options model.backbone.init_cfg=None).')
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
    assert len(kept(cache)) == 2 and all(name.endswith('-slow.pth') for name in kept(cache))  # apart, of the same name
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
    assert ': check the address, the network ' in told and 'or name a local file, or train' in told


def test_a_hub_that_does_not_answer_is_asked_once_and_a_sentence_tells(server: Server, tmp_path: Path) -> None:
    code = """
from cpvt_mm import CPVT
from openmmlab_tools.checkpoints.fetching import size_of
from openmmlab_tools.checkpoints.reading import read_checkpoint
print(size_of('hf://owner/mute'))
for load, name in ((read_checkpoint, 'hf://owner/mute'), (CPVT.from_pretrained, 'owner/mute')):
    try:
        load(name)
    except Exception as error:
        print(f'{type(error).__name__}: {error}')
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT, env={
        **os.environ, 'HF_ENDPOINT': server.url, 'HF_HOME': str(tmp_path)})
    assert server.requests == ['/owner/mute/resolve/main/model.safetensors'] * 3
    size, fetching, *told = (done.stdout + done.stderr).splitlines()
    assert size == 'None' and fetching.endswith(' fetching hf://owner/mute')
    host = server.url.removeprefix('http://')
    assert told[0].startswith('UserError: checkpoint hf://owner/mute cannot be fetched (hf://owner/mute: '
                              f'ConnectionError: {host} does not answer): check the address, the network and ')
    assert told[1:] == ['UserError: owner/mute is not in the cache of the Hugging Face hub, and cannot be fetched '
                        f'({host} does not answer): check the network, or name a folder.']


def test_without_huggingface_hub_a_sentence_names_it(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
    assert refusal(read_checkpoint, 'hf://owner/name') == (
        'checkpoint hf://owner/name needs a package that is not installed: pip install huggingface_hub.')


def test_urls_of_weights_are_tried_in_order_and_their_terms_are_told(server: Server, cache: Path, log: list,
                                                                     monkeypatch: MonkeyPatch) -> None:
    def release(*urls: str) -> str:
        files = dict.fromkeys(urls, 'mmseg')
        monkeypatch.setitem(RELEASED, 'mine', Member('PyramidCPVT', 'small', files=files, licence='My License'))
        return 'cpvt_mm://mine'

    cut, good, gone = server.add('/cut.pth', saved()), server.add('/good.pth', saved()), f'{server.url}/gone.pth'
    told = refusal(read_checkpoint, release(cut, gone))
    assert told.startswith(f'checkpoint cpvt_mm://mine cannot be fetched ({cut}: ValueError: the ')
    assert f'; {gone}: HTTPError: HTTP Error 404: File not found): check' in told
    assert f'download {cut} elsewhere and save it as {cache_file(cut)}, or' in told
    server.requests.clear()
    log.clear()
    for _ in range(2):
        assert read_weights(release(cut, good, gone)).tensors.keys() == {'weight'}
    assert server.requests == ['/cut.pth', '/good.pth'] and kept(cache) == [cache_file(good).name]
    terms, failure = [text for level, text in log if level == 'WARNING']
    assert terms == 'these weights are under the My License'
    assert failure.startswith(f'{cut}: ValueError: the received file is cut, ')

    # The eps is that of the weights, not of their format, 1e-5.
    url = server.add('/mmseg.pth', (GOLDEN / 'mmseg.pth').read_bytes())
    for address in (release(url), url):
        log.clear()
        for eps in (1e-6, 1e-5):
            load_pretrained(PyramidCPVT(NARROW, norm_eps=eps), address)
        [warning] = [text for level, text in log if level == 'WARNING' and 'License' not in text]
        assert warning.startswith(f'weights of {address} have norm_eps 1e-06, but the backbone has 1e-05')


@pytest.mark.parametrize('name', RELEASED)
def test_released_weights_name_a_backbone_and_files_of_a_known_format(name: str) -> None:
    released, urls = RELEASED[name], list(RELEASED[name].files)
    assert released.name in {'PyramidCPVT': PYRAMID_ARCHS, 'CPVT': PLAIN_ARCHS}[released.backbone]
    assert {*released.files.values()} <= {known for fmt in FORMATS if fmt.backbone == released.backbone
                                          for known in fmt.names}
    assert all(url.startswith(('https://', 'hf://')) for url in urls)
    assert released.name.replace('pvtv2', 'pvt_v2').replace('-', '_') in urls[-1]
    terms = {'mit': 'not commercial use', 'dinov3': 'DINOv3 License, https://', 'lingbot': 'Apache License 2.0'}
    assert terms.get(name.partition('-')[0], 'Apache-2.0') in released.licence
    assert released.norm_eps == (1e-5 if 'DINOv3 License, https://' in released.licence else 1e-6)
    assert name.startswith(('mit', 'dinov3', 'lingbot')) == (released.licence != 'Apache-2.0')
    assert len(urls) == 1 or name.startswith(('dinov', 'lingbot', 'pvtv2')) or CHECKSUM.search(urls[0])
