"""Files that are fetched from an address, and the released ones that have a name."""
import hashlib
import io
import os
import pickle
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from pytest import MonkeyPatch
from safetensors.torch import save

from cpvt_mm import PLAIN_ARCHS, PYRAMID_ARCHS, PyramidCPVT, create_backbone
from cpvt_mm.models.load import load_pretrained
from cpvt_mm.weights.formats import FORMATS
from cpvt_mm.weights.released import RELEASED, Released, find_released
from openmmlab_runs.checkpoints import fetching
from openmmlab_runs.checkpoints.fetching import CHECKSUM, cache_file
from openmmlab_runs.checkpoints.reading import read_checkpoint, read_weights
from openmmlab_runs.errors import UserError
from tests.conftest import GOLDEN, NARROW, refusal
from tests.processes import wait_until

WEIGHTS = dict(weight=torch.ones(1000))


def saved(**kwargs: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(WEIGHTS, buffer, **kwargs)
    return buffer.getvalue()


PAUSES = {'slow': 1, 'wait': .3}


class Server(ThreadingHTTPServer):
    """Serves `files` by path; in the middle it makes the pause that a path's name asks for, or ends: 'cut'.

    It tells no length of 'endless', sends 'drip' in small parts, and redirects to what is in `elsewhere`. `tokens` are
    those of the requests.
    """
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), Handler)
        self.files, self.requests, self.url = {}, [], f'http://127.0.0.1:{self.server_port}'
        self.elsewhere, self.tokens = {}, []

    def add(self, path: str, content: bytes) -> str:
        self.files[path] = content
        return self.url + path


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.path.partition('?')[0]
        self.server.requests.append(path)
        self.server.tokens.append(self.headers['Authorization'])
        if path in self.server.elsewhere:
            self.send_response(302)
            self.send_header('Location', self.server.elsewhere[path])
            return self.end_headers()
        if path not in self.server.files:
            return self.send_error(404)
        content = self.server.files[path]
        middle = len(content) // 2
        self.send_response(200)
        if 'endless' not in path:
            self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        for byte in content[:50] if 'drip' in path else b'':
            self.wfile.write(bytes([byte]))
            time.sleep(.02)
        self.wfile.write(content[:middle])
        self.wfile.flush()
        time.sleep(sum(seconds for word, seconds in PAUSES.items() if word in path))
        if 'cut' not in path:
            self.wfile.write(content[middle:])

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


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
    ('/cut.pth', saved(), 'only .* of .* bytes were received'),
    ('/endless-cut.pth', saved(), 'the received file is cut or damaged'),
    ('/endless-cut.pth', saved(_use_new_zipfile_serialization=False), 'the received file is cut or damaged'),
    ('/endless-cut.safetensors', save(WEIGHTS), 'the received file is cut or damaged'),
    ('/drip.pth', saved(), r'only \d+ bytes were received in 0\.2 s'),
    ('/a-0123abcd.pth', saved(), 'the SHA-256 of the file begins with .*, not 0123abcd'),
    ('/page.pth', b'<!DOCTYPE html><title>{Log in}</title>', "the received file is not a checkpoint, it begins with b"),
    ('/empty.pth', b'', 'the received file is not a checkpoint'), ('/slow.pth', saved(), 'TimeoutError: timed out')])
def test_what_is_wrong_is_not_kept(path: str, content: bytes, words: str, server: Server, cache: Path,
                                   monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, 'TIMEOUT', .3)
    monkeypatch.setattr(fetching, 'SPAN', .2)
    url = server.add(path, content)
    with pytest.raises(UserError, match=rf'checkpoint {url} cannot be fetched \({url}: .*{words}'):
        read_checkpoint(url)
    assert kept(cache) == []


def test_a_sentence_tells_where_to_put_the_file_and_what_is_wrong_with_cache_or_name(cache: Path) -> None:
    checked = CHECKED[1:]
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        url = f'http://127.0.0.1:{free.getsockname()[1]}/{checked}'
        told = refusal(read_checkpoint, url)
    assert told.endswith(
        f'Connection refused>): check the address and the network, or download {url} elsewhere and save it as '
        f'{cache / checked}, or train without it (init_cfg=None, on the command line --cfg-options '
        'model.backbone.init_cfg=None).')
    (cache / checked).write_bytes(saved())
    assert torch.equal(read_checkpoint(url)['weight'], WEIGHTS['weight'])
    shutil.rmtree(cache.parent)
    cache.parent.write_text('a file')
    told = refusal(read_checkpoint, 'http://127.0.0.1:1/a.pth')
    assert 'cannot be written to the cache (' in told and ': set ' in told and 'TORCH_HOME' in told
    assert 'cpvt_mm://pyramid-cpvt-smal is not ' in (told := refusal(find_released, 'cpvt_mm://pyramid-cpvt-smal'))
    assert 'did you mean pyramid-cpvt-small; there are cpvt_mm://pyramid-cpvt-small, ' in told


@pytest.mark.parametrize(('name', 'damage', 'words'), [
    (CHECKED[1:], lambda content: content.replace(b'\0\0\x80?', b'\0\0\x80@', 1), r'is damaged \(the SHA-256 .*\):'),
    ('a.pth', lambda content: content[:100], 'cannot be read .*damaged or not a checkpoint;'),
    ('a.pth', lambda content: pickle.dumps(os.mkdir), 'is damaged, or contains .*;')])
def test_a_damaged_file_in_the_cache_is_named(name: str, damage: Callable[[bytes], bytes], words: str, cache: Path
                                              ) -> None:
    cache.mkdir(parents=True)
    file = cache_file(url := f'http://127.0.0.1:1/{name}')
    file.write_bytes(damage(saved()))
    with pytest.raises(UserError, match=rf'checkpoint {url} \({file}\) {words} remove this file to fetch it again\.$'):
        read_checkpoint(url)


def test_one_downloads_and_the_others_wait_and_what_a_killed_process_left_goes(server: Server, cache: Path) -> None:
    urls = [server.add(f'/{folder}/wait.pth', saved()) for folder in 'ab']
    cache.mkdir(parents=True)
    file = cache_file(urls[0])
    file.with_name(f'{file.name}.123.tmp').write_bytes(b'half')
    with ThreadPoolExecutor(4) as pool:
        assert all('weight' in checkpoint for checkpoint in pool.map(read_checkpoint, urls * 2))
    assert sorted(server.requests) == ['/a/wait.pth', '/b/wait.pth']
    assert len(kept(cache)) == 2 and all(name.endswith('-wait.pth') for name in kept(cache))  # apart, of the same name


def test_who_waits_too_long_is_told_for_whom(server: Server, cache: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, 'WAIT', .1)
    url = server.add('/slow.pth', saved())
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(read_checkpoint, url)
        wait_until(lambda: cache.is_dir() and list(cache.glob('*.tmp')))
        told = refusal(read_checkpoint, url)
        assert f'it is being fetched by process {os.getpid()}, which writes {cache_file(url)}.' in told
        assert 'weight' in first.result()


@pytest.mark.parametrize(('address', 'words'), [
    *((address, f'{address} is not a file ') for address in (
        'hf://name', 'hf://owner/', 'hf:///name', 'hf://owner/name@', 'hf://owner/@v1')),
    ('torchvision://resnet50', 'torchvision://resnet50 cannot be fetched (')])
def test_an_address_that_names_no_file_is_refused(address: str, words: str) -> None:
    told = refusal(read_checkpoint, address)
    assert words in told and 'damaged' not in told


@pytest.mark.parametrize(('address', 'file'), [
    ('hf://owner/name', 'main/model.safetensors'), ('hf://owner/name/deep/b.pth', 'main/deep/b.pth'),
    ('hf://owner/name@v1', 'v1/model.safetensors'), ('hf://owner/name@0123abcd/deep/b.pth', '0123abcd/deep/b.pth')])
def test_hub_is_at_its_endpoint(address: str, file: str, server: Server, monkeypatch: MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv('HF_ENDPOINT', f'{server.url}/')
    path = f'/owner/name/resolve/{file}'
    server.add(path, saved() if file.endswith('.pth') else save(WEIGHTS))
    assert torch.equal(read_checkpoint(address)['weight'], WEIGHTS['weight'])
    assert server.requests == [path]
    assert kept(cache) == [cache_file(f'https://huggingface.co{path}').name]  # the same from every endpoint


@pytest.mark.parametrize('is_variable', [True, False])
def test_the_token_is_for_the_hub_alone(is_variable: bool, server: Server, tmp_path: Path, monkeypatch: MonkeyPatch
                                        ) -> None:
    (tmp_path / 'token').write_text('of-a-file\n')
    monkeypatch.setenv('HF_HOME', str(tmp_path))
    monkeypatch.setenv('HF_TOKEN', 'of-a-variable' if is_variable else '')
    monkeypatch.setenv('HF_ENDPOINT', server.url)
    with serving() as other:
        server.elsewhere['/owner/name/resolve/main/a.pth'] = other.add('/b.pth', saved())
        for address in ('hf://owner/name/a.pth', server.add('/c.pth', saved())):
            assert read_checkpoint(address).keys() == {'weight'}
        assert other.tokens == [None]
    assert server.tokens == ['Bearer of-a-variable' if is_variable else 'Bearer of-a-file', None]


def release(monkeypatch: MonkeyPatch, *urls: str, sha256: str | None = None) -> str:
    files = dict.fromkeys(urls, 'mmseg')
    monkeypatch.setitem(RELEASED, 'mine', Released('PyramidCPVT', 'small', files, 81, 'a test', sha256=sha256))
    return 'cpvt_mm://mine'


def test_urls_of_weights_are_tried_in_order(server: Server, cache: Path, log: list, monkeypatch: MonkeyPatch) -> None:
    good = server.add('/good.pth', saved())
    address = release(monkeypatch, server.add('/cut.pth', saved()), good, server.add('/never.pth', saved()))
    for _ in range(2):
        assert read_weights(address).tensors.keys() == {'weight'}
    assert server.requests == ['/cut.pth', '/good.pth'] and kept(cache) == [cache_file(good).name]
    [warning] = [text for level, text in log if level == 'WARNING']
    assert warning.startswith(f'{server.url}/cut.pth: ValueError: only ')


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


def test_the_copy_of_released_weights_has_the_checksum_of_the_table(server: Server, monkeypatch: MonkeyPatch,
                                                                    cache: Path) -> None:
    urls = [f'{server.url}/gone.pth', server.add('/copy.pth', saved())]
    assert 'copy.pth: ValueError: the SHA-256 of the file begins with ' in (
        refusal(read_checkpoint, release(monkeypatch, *urls, sha256='0' * 64)))
    assert kept(cache) == []
    digest = hashlib.sha256(saved()).hexdigest()
    assert read_checkpoint(release(monkeypatch, *urls, sha256=digest)).keys() == {'weight'}


def test_where_no_url_works_each_is_named(server: Server, monkeypatch: MonkeyPatch, cache: Path) -> None:
    urls = [server.add('/cut.pth', saved()), f'{server.url}/gone.pth']
    message = refusal(read_checkpoint, release(monkeypatch, *urls))
    assert message.startswith(f'checkpoint cpvt_mm://mine cannot be fetched ({urls[0]}: ValueError: only ')
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
    assert released.arch in {'PyramidCPVT': PYRAMID_ARCHS, 'CPVT': PLAIN_ARCHS}[released.backbone]
    formats = {known for fmt in FORMATS if fmt.backbone == released.backbone for known in fmt.names}
    assert set(released.files.values()) <= formats
    urls = list(released.files)
    assert all(url.startswith('https://') for url in urls)
    assert f'_{released.arch.replace("-", "_")}' in urls[-1] and 'arXiv' in released.source
    if name.startswith('dinov3'):
        assert released.licence.startswith('DINOv3 License') and released.norm_eps == 1e-5 and released.top1 is None
    else:
        assert released.licence == 'Apache-2.0' and released.norm_eps == 1e-6 and 0 < released.top1 < 100
        assert name.startswith('dinov2') or (CHECKSUM.search(urls[0]) and f'_{released.arch}' in urls[0])
