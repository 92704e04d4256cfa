"""Files that are fetched from an address, and the released ones that have a name."""
import hashlib
import io
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from pytest import MonkeyPatch
from safetensors.torch import save

from cpvt_mm import PLAIN_ARCHS, PYRAMID_ARCHS, PyramidCPVT, create_backbone
from cpvt_mm.zoo.families import FORMATS, RELEASED, find_released
from cpvt_mm.zoo.family import Member
from cpvt_mm.zoo.load import load_pretrained
from openmmlab_runs.checkpoints import fetching
from openmmlab_runs.checkpoints.fetching import CHECKSUM, cache_file, size_of
from openmmlab_runs.checkpoints.reading import read_checkpoint, read_weights
from openmmlab_runs.errors import UserError
from tests.conftest import GOLDEN, NARROW, ROOT, refusal

WEIGHTS = dict(weight=torch.ones(1000))


def saved(**kwargs: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(WEIGHTS, buffer, **kwargs)
    return buffer.getvalue()


COMMIT = '0123456789abcdef' * 2 + '01234567'


class Server(ThreadingHTTPServer):
    """Serves `files` by path, with a commit and a hash as the hub does; 'slow' pauses in the middle, 'cut' ends there.
    `requests` are the paths of downloads, and `tokens` those of all requests for files.
    """
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), Handler)
        self.files, self.requests, self.url = {}, [], f'http://127.0.0.1:{self.server_port}'
        self.tokens = set()

    def add(self, path: str, content: bytes) -> str:
        self.files[path] = content
        return self.url + path


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        path = self.path.partition('?')[0]
        self.server.requests.append(path)
        if content := self.answer():
            middle = len(content) // 2
            self.wfile.write(content[:middle])
            self.wfile.flush()
            time.sleep('slow' in path)
            if 'cut' not in path:
                self.wfile.write(content[middle:])

    def answer(self) -> bytes | None:
        path = self.path.partition('?')[0]
        if not path.startswith('/api/'):
            self.server.tokens.add(self.headers['Authorization'])
        content = self.server.files.get(path)
        if content is None:
            self.send_error(404)
            return None
        self.send_response(200)
        self.send_header('Content-Length', str(len(content)))
        self.send_header('ETag', hashlib.sha256(content).hexdigest())
        self.send_header('X-Repo-Commit', COMMIT)
        self.end_headers()
        return content

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """The folder that downloads go to; there is none yet."""
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    return tmp_path / 'hub/checkpoints'


def kept(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != '.lock')


CHECKED = f'/model_20220308-{hashlib.sha256(saved()).hexdigest()[:8]}.pth'


@pytest.mark.parametrize('name', [CHECKED, '/a.pth', '/a-20220308.pth', '/step-00010000.pth', '/a.pth?download=true',
                                  '/a.safetensors?download=true'])
def test_a_url_is_fetched_once_and_a_checksum_makes_it_torchs_file(name: str, server: Server, cache: Path) -> None:
    path = name.partition('?')[0]
    server.add(path, save(WEIGHTS) if 'safetensors' in name else saved())
    for _ in range(2):
        assert torch.equal(read_checkpoint(server.url + name)['weight'], WEIGHTS['weight'])
    assert server.requests == [path]
    [file] = kept(cache)
    assert file == cache_file(server.url + name).name and (file == path[1:]) == (name == CHECKED)


@pytest.mark.parametrize(('path', 'content', 'words'), [
    ('/cut.pth', saved(), r'the received file is cut, .* it begins with b.PK'),
    ('/cut.pth', saved(_use_new_zipfile_serialization=False), 'the received file is cut'),
    ('/cut.safetensors', save(WEIGHTS), 'the received file is cut'),
    ('/a-0123abcd.pth', saved(), 'invalid hash value .*expected "0123abcd"'),
    ('/page.pth', b'<!DOCTYPE html><title>{Log in}</title>', "it begins with b'<!DOCTYPE html>"),
    ('/empty.pth', b'', 'the received file is cut'), ('/slow.pth', saved(), 'TooLong: no answer in 0 seconds')])
def test_what_is_wrong_is_not_kept(path: str, content: bytes, words: str, server: Server, cache: Path,
                                   monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, 'WAIT', .4 if 'slow' in path else 3600.)
    url = server.add(path, content)
    with pytest.raises(UserError, match=rf'checkpoint {url} cannot be fetched \({url}: .*{words}'):
        read_checkpoint(url)
    assert [name for name in kept(cache) if not name.endswith('.partial')] == []  # torch still writes the slow one


def test_a_sentence_tells_where_to_put_the_file_and_what_is_wrong_with_cache_or_name(cache: Path) -> None:
    checked = CHECKED[1:]
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        url = f'http://127.0.0.1:{free.getsockname()[1]}/{checked}'
        told = refusal(read_checkpoint, url)
    assert told.endswith(
        'Connection refused>): check the address, the network and that the cache (TORCH_HOME, HF_HOME) can be written, '
        f'or download {url} elsewhere and save it as {cache / checked}, or train without it (init_cfg=None, on the '
        'command line --cfg-options model.backbone.init_cfg=None).')
    (cache / checked).write_bytes(saved())
    assert torch.equal(read_checkpoint(url)['weight'], WEIGHTS['weight'])
    shutil.rmtree(cache.parent)
    cache.parent.write_text('a file')
    assert f"Not a directory: '{cache}'): check " in refusal(read_checkpoint, 'http://127.0.0.1:1/a.pth')
    assert 'cpvt_mm://pyramid-cpvt-smal is not ' in (told := refusal(find_released, 'cpvt_mm://pyramid-cpvt-smal'))
    assert 'did you mean pyramid-cpvt-small; there are cpvt_mm://pyramid-cpvt-small, ' in told


@pytest.mark.parametrize(('name', 'damage', 'words'), [
    (CHECKED[1:], lambda content: content.replace(b'\0\0\x80?', b'\0\0\x80@', 1), r'is damaged \(its SHA-256 .*\):'),
    ('a.pth', lambda content: content[:100], 'cannot be read .*damaged or not a checkpoint;')])
def test_a_damaged_file_in_the_cache_is_named(name: str, damage: Callable[[bytes], bytes], words: str, cache: Path
                                              ) -> None:
    cache.mkdir(parents=True)
    file = cache_file(url := f'http://127.0.0.1:1/{name}')
    file.write_bytes(damage(saved()))
    with pytest.raises(UserError, match=rf'checkpoint {url} \({file}\) {words} remove this file to fetch it again\.$'):
        read_checkpoint(url)


def test_one_downloads_and_the_others_wait(server: Server, cache: Path) -> None:
    urls = [server.add(f'/{folder}/slow.pth', saved()) for folder in 'ab']
    with ThreadPoolExecutor(4) as pool:
        assert all('weight' in checkpoint for checkpoint in pool.map(read_checkpoint, urls * 2))
    assert sorted(server.requests) == ['/a/slow.pth', '/b/slow.pth']
    assert len(kept(cache)) == 2 and all(name.endswith('-slow.pth') for name in kept(cache))  # apart, of the same name


def test_who_waits_too_long_is_told(server: Server, cache: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, 'WAIT', .1)
    file = cache_file(url := server.add('/a.pth', saved()))
    cache.mkdir(parents=True)
    with FileLock(f'{file}.lock'):
        assert f"Timeout: The file lock '{file}.lock' could not be acquired" in refusal(read_checkpoint, url)


@pytest.mark.parametrize(('address', 'words'), [
    *((address, f'{address} is not a file ') for address in (
        'hf://name', 'hf://owner/', 'hf:///name', 'hf://owner/name@', 'hf://owner/@v1')),
    ('hf://owner/na me', 'hf://owner/na me cannot be fetched (hf://owner/na me: HFValidationError: '),
    ('torchvision://resnet50', 'torchvision://resnet50 cannot be fetched (')])
def test_an_address_that_names_no_file_is_refused(address: str, words: str) -> None:
    told = refusal(read_checkpoint, address)
    assert words in told and 'damaged' not in told


def test_files_of_the_hub_are_those_of_its_own_cache(server: Server, tmp_path: Path) -> None:
    """In another process, since huggingface_hub reads the variables when it is imported."""
    branch, tag = ('/owner/name/resolve/main/model.safetensors', '/owner/name/resolve/v1/deep/b.pth')
    server.add(branch, save(WEIGHTS))
    server.add(tag, saved())
    code = """
import sys
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from openmmlab_runs.checkpoints.fetching import size_of
from openmmlab_runs.checkpoints.reading import read_checkpoint
from openmmlab_runs.errors import UserError
sizes = [size_of('hf://owner/name'), size_of('hf://owner/name/no.pth')]
for _ in range(2):
    for address in ('hf://owner/name', 'hf://owner/name@v1/deep/b.pth'):
        assert read_checkpoint(address)['weight'].sum() == 1000
assert try_to_load_from_cache('owner/name', 'deep/b.pth', revision='v1') == hf_hub_download('owner/name', 'deep/b.pth',
                                                                                            revision='v1')
try:
    read_checkpoint('hf://owner/name/no.pth')
except UserError as error:
    print(error)
print(*sizes, size_of('hf://owner/name'))
"""
    told, sizes = subprocess.run([sys.executable, '-c', code], check=True, capture_output=True, text=True, cwd=ROOT,
                                 env={**os.environ, 'HF_ENDPOINT': server.url, 'HF_HOME': str(tmp_path),
                                      'HF_TOKEN': 'of-a-variable', 'TORCH_HOME': str(tmp_path / 'torch')},
                                 ).stdout.splitlines()[-2:]
    size = len(save(WEIGHTS))
    assert sizes == f'{size} None {size}'
    assert [path for path in server.requests if path[:5] != '/api/'] == [branch, tag]  # newer ones ask more
    assert server.tokens == {'Bearer of-a-variable'}
    assert told.startswith('checkpoint hf://owner/name/no.pth cannot be fetched (hf://owner/name/no.pth: ')
    assert ': check the address, the network ' in told and 'or name a local file, or train' in told
    assert not (tmp_path / 'torch').exists()


def test_the_size_of_a_file_is_that_of_the_cache_or_the_net(server: Server, cache: Path) -> None:
    url = server.add('/a.pth', b'1234')
    assert [size_of(url), size_of(server.url + '/no.pth')] == [4, None] and not server.requests
    cache_file(url).parent.mkdir(parents=True, exist_ok=True)
    cache_file(url).write_bytes(b'12')
    assert size_of(url) == 2


def test_without_huggingface_hub_a_sentence_names_it(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
    assert refusal(read_checkpoint, 'hf://owner/name') == (
        'checkpoint hf://owner/name needs a package that is not installed: pip install huggingface_hub.')


def release(monkeypatch: MonkeyPatch, *urls: str) -> str:
    files = dict.fromkeys(urls, 'mmseg')
    monkeypatch.setitem(RELEASED, 'mine', Member('PyramidCPVT', 'small', files=files))
    return 'cpvt_mm://mine'


def test_urls_of_weights_are_tried_in_order(server: Server, cache: Path, log: list, monkeypatch: MonkeyPatch) -> None:
    good = server.add('/good.pth', saved())
    address = release(monkeypatch, server.add('/cut.pth', saved()), good, server.add('/never.pth', saved()))
    for _ in range(2):
        assert read_weights(address).tensors.keys() == {'weight'}
    assert server.requests == ['/cut.pth', '/good.pth'] and kept(cache) == [cache_file(good).name]
    [warning] = [text for level, text in log if level == 'WARNING']
    assert warning.startswith(f'{server.url}/cut.pth: ValueError: the received file is cut, ')


def test_dinov3_is_fetched_as_timm_publishes_it(server: Server, monkeypatch: MonkeyPatch, cache: Path, log: list
                                                ) -> None:
    weights, released = create_backbone('dinov3-small').state_dict(), RELEASED['dinov3-small']
    [form] = released.files.values()
    theirs = next(fmt for fmt in FORMATS if form in fmt.names).to_theirs(weights)
    url = server.add('/model.safetensors', save({name: tensor.contiguous() for name, tensor in theirs.items()}))
    monkeypatch.setitem(RELEASED, 'dinov3-small', released._replace(files={url: form}))
    loaded = create_backbone('dinov3-small', pretrained=True).state_dict()
    assert weights.keys() == loaded.keys() and all(torch.equal(weights[name], loaded[name]) for name in weights)
    create_backbone('dinov3-small', pretrained=True)  # a second time, without a download
    assert [text for level, text in log if 'License' in text] == [
        'these weights are under the DINOv3 License, https://ai.meta.com/resources/models-and-libraries/dinov3-license/']


def test_where_no_url_works_each_is_named(server: Server, monkeypatch: MonkeyPatch, cache: Path) -> None:
    urls = [server.add('/cut.pth', saved()), f'{server.url}/gone.pth']
    message = refusal(read_checkpoint, release(monkeypatch, *urls))
    assert message.startswith(f'checkpoint cpvt_mm://mine cannot be fetched ({urls[0]}: ValueError: the ')
    assert f'; {urls[1]}: HTTPError: HTTP Error 404: Not Found): check' in message
    assert f'download {urls[0]} elsewhere and save it as {cache_file(urls[0])}, or' in message


def test_norm_eps_is_that_of_weights_not_of_their_format(server: Server, log: list, monkeypatch: MonkeyPatch) -> None:
    url = server.add('/mmseg.pth', (GOLDEN / 'mmseg.pth').read_bytes())
    for address in (release(monkeypatch, url), url):
        log.clear()
        load_pretrained(PyramidCPVT(NARROW), address)
        load_pretrained(PyramidCPVT(NARROW, norm_eps=1e-5), address)
        [warning] = [message for level, message in log if level == 'WARNING']
        assert warning.startswith(f'weights of {address} have norm_eps 1e-06, but the backbone has 1e-05')


@pytest.mark.parametrize('name', RELEASED)
def test_released_weights_name_a_backbone_and_files_of_a_known_format(name: str) -> None:
    released = RELEASED[name]
    assert released.name in {'PyramidCPVT': PYRAMID_ARCHS, 'CPVT': PLAIN_ARCHS}[released.backbone]
    formats = {known for fmt in FORMATS if fmt.backbone == released.backbone for known in fmt.names}
    assert set(released.files.values()) <= formats
    urls = list(released.files)
    assert all(url.startswith(('https://', 'hf://')) for url in urls)
    size = released.name.replace('pvtv2', 'pvt_v2').replace('-', '_')
    assert size in urls[-1] and 'arXiv' in released.source
    if name.startswith('mit-'):
        assert 'not commercial use' in released.licence and released.top1 is None and CHECKSUM.search(urls[0])
    elif name.startswith(('dinov3', 'lingbot')):
        assert 'DINOv3 License, https://' in released.licence and released.norm_eps == 1e-5 and released.top1 is None
        assert name.startswith('dinov3') or 'Apache License 2.0' in released.licence
    else:
        assert released.licence == 'Apache-2.0' and released.norm_eps == 1e-6
        assert released.top1 is None if name.startswith('tipsv2') else 0 < released.top1 < 100
        assert len(urls) == 1 or name.startswith(('dinov2', 'pvtv2')) or (
            CHECKSUM.search(urls[0]) and f'_{released.name}' in urls[0])
