"""Files that are fetched from an address, and the released ones that have a name."""
import hashlib
import io
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook
from pytest import MonkeyPatch
from safetensors.torch import save

from cpvt_mm import PLAIN_ARCHS, PYRAMID_ARCHS, PyramidCPVT, engine
from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from cpvt_mm.models.pretrained import load_pretrained
from cpvt_mm.weights import fetching
from cpvt_mm.weights.fetching import CHECKSUM, cache_file
from cpvt_mm.weights.formats import FORMATS
from cpvt_mm.weights.reading import read_checkpoint, read_weights
from cpvt_mm.weights.released import RELEASED, Released, find_released
from inferencing import build_inferencer
from tests.conftest import GOLDEN, NARROW, Trained, refusal

WEIGHTS = dict(weight=torch.ones(1000))


def saved() -> bytes:
    buffer = io.BytesIO()
    torch.save(WEIGHTS, buffer)
    return buffer.getvalue()


PAUSES = {'slow': 1, 'wait': .3}


class Server(ThreadingHTTPServer):
    """Serves `files` by path; in the middle it makes the pause that a path's name asks for, or ends: 'cut'."""
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), Handler)
        self.files, self.requests, self.url = {}, [], f'http://127.0.0.1:{self.server_port}'

    def add(self, path: str, content: bytes) -> str:
        self.files[path] = content
        return self.url + path


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.path.partition('?')[0]
        self.server.requests.append(path)
        if path not in self.server.files:
            return self.send_error(404)
        content = self.server.files[path]
        middle = len(content) // 2
        self.send_response(200)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content[:middle])
        self.wfile.flush()
        time.sleep(sum(seconds for word, seconds in PAUSES.items() if word in path))
        if 'cut' not in path:
            self.wfile.write(content[middle:])

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


@pytest.mark.parametrize('name', [CHECKED, '/a.pth', '/a-20220308.pth', '/a.pth?download=true',
                                  '/a.safetensors?download=true'])
def test_a_url_is_fetched_once_and_a_checksum_makes_it_torchs_file(name: str, server: Server, cache: Path) -> None:
    path = name.partition('?')[0]
    server.add(path, save(WEIGHTS) if 'safetensors' in name else saved())
    for _ in range(2):
        assert torch.equal(read_checkpoint(server.url + name)['weight'], WEIGHTS['weight'])
    assert server.requests == [path]
    [file] = kept(cache)
    assert file == cache_file(server.url + name).name and (file == path[1:]) == (name == CHECKED)


def test_files_of_the_same_name_are_kept_apart(server: Server, cache: Path) -> None:
    for folder in 'ab':
        read_checkpoint(server.add(f'/{folder}/model.pth', saved()))
    assert len(kept(cache)) == 2 and all(name.endswith('-model.pth') for name in kept(cache))


@pytest.mark.parametrize(('path', 'content', 'words'), [
    ('/cut.pth', saved(), 'only .* of .* bytes were received'),
    ('/cut.safetensors', save(WEIGHTS), 'only .* of .* bytes were received'),
    ('/a-0123abcd.pth', saved(), 'the SHA-256 of the received file begins with .*, not 0123abcd'),
    ('/page.pth', b'<!DOCTYPE html><title>{Log in}</title>', "the received file is not a checkpoint, it begins with b"),
    ('/page.safetensors', b'<!DOCTYPE html><title>Log in</title>', 'the received file is not a checkpoint'),
    ('/empty.pth', b'', 'the received file is not a checkpoint'), ('/slow.pth', saved(), 'TimeoutError: timed out')])
def test_what_is_wrong_is_not_kept(path: str, content: bytes, words: str, server: Server, cache: Path,
                                   monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, 'TIMEOUT', .3)
    url = server.add(path, content)
    with pytest.raises(UserError, match=rf'checkpoint {url} cannot be fetched \({url}: .*{words}'):
        read_checkpoint(url)
    assert kept(cache) == []


def test_a_sentence_tells_where_to_put_the_file_which_is_named_if_it_is_damaged(cache: Path) -> None:
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        url = f'http://127.0.0.1:{free.getsockname()[1]}/a-0123abcd.pth'
        told = refusal(read_checkpoint, url)
    assert told.endswith(
        f'Connection refused>): check the address and the network, or download {url} elsewhere and save it as '
        f'{cache / "a-0123abcd.pth"}, or train without it (init_cfg=None, on the command line --cfg-options '
        'model.backbone.init_cfg=None).')
    (cache / 'a-0123abcd.pth').write_bytes(saved())
    assert torch.equal(read_checkpoint(url)['weight'], WEIGHTS['weight'])
    cache_file(url).write_bytes(saved()[:100])
    with pytest.raises(UserError, match=rf'checkpoint {url} \({cache_file(url)}\) cannot be read .*damaged'):
        read_checkpoint(url)


def test_a_server_that_does_not_answer_is_left_after_the_timeout(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, 'TIMEOUT', .3)
    with socket.create_server(('127.0.0.1', 0)) as silent, pytest.raises(UserError, match='timed out'):
        read_checkpoint(f'http://127.0.0.1:{silent.getsockname()[1]}/a.pth')


def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    cache.parent.write_text('a file')
    with pytest.raises(UserError, match=rf"cannot be written to the cache \(.*{cache}'\): set .* TORCH_HOME"):
        read_checkpoint('http://127.0.0.1:1/a.pth')


def test_what_a_killed_process_left_goes(server: Server, cache: Path) -> None:
    cache.mkdir(parents=True)
    file = cache_file(server.add('/a.pth', saved()))
    file.with_name(f'{file.name}.123.tmp').write_bytes(b'half')
    read_checkpoint(f'{server.url}/a.pth')
    assert kept(cache) == [file.name]


def test_one_downloads_and_the_others_wait(server: Server) -> None:
    url = server.add('/wait.pth', saved())
    with ThreadPoolExecutor(4) as pool:
        assert all('weight' in checkpoint for checkpoint in pool.map(read_checkpoint, [url] * 4))
    assert server.requests == ['/wait.pth']


@pytest.mark.parametrize(('address', 'file'), [('hf://owner/name', 'model.safetensors'),
                                               ('hf://owner/name/deep/b.pth', 'deep/b.pth')])
def test_hub_is_at_its_endpoint(address: str, file: str, server: Server, monkeypatch: MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv('HF_ENDPOINT', f'{server.url}/')
    path = f'/owner/name/resolve/main/{file}'
    server.add(path, saved() if file.endswith('.pth') else save(WEIGHTS))
    assert torch.equal(read_checkpoint(address)['weight'], WEIGHTS['weight'])
    assert server.requests == [path]
    assert kept(cache) == [cache_file(f'https://huggingface.co{path}').name]  # the same from every endpoint


@pytest.mark.parametrize('address', ['hf://name', 'hf://owner/', 'hf:///name'])
def test_an_address_of_the_hub_without_a_repository_is_refused(address: str) -> None:
    told = refusal(read_checkpoint, address)
    assert f'{address} is not a file ' in told and 'write hf://owner/name' in told


def release(monkeypatch: MonkeyPatch, *urls: str) -> str:
    monkeypatch.setitem(RELEASED, 'mine', Released('PyramidCPVT', 'small', dict.fromkeys(urls, 'mmseg'), 81, 'a test'))
    return 'cpvt_mm://mine'


def test_urls_of_weights_are_tried_in_order(server: Server, cache: Path, log: list, monkeypatch: MonkeyPatch) -> None:
    good = server.add('/good.pth', saved())
    address = release(monkeypatch, server.add('/cut.pth', saved()), good, server.add('/never.pth', saved()))
    for _ in range(2):
        assert read_weights(address).tensors.keys() == {'weight'}
    assert server.requests == ['/cut.pth', '/good.pth'] and kept(cache) == [cache_file(good).name]
    [warning] = [text for level, text in log if level == 'WARNING']
    assert warning.startswith(f'{server.url}/cut.pth: ValueError: only ')


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


def test_what_no_backend_reads_is_not_called_damaged() -> None:
    told = refusal(read_checkpoint, 'torchvision://resnet50')
    assert 'torchvision://resnet50 cannot be fetched (' in told and ': check the address' in told
    assert 'damaged' not in told


@pytest.mark.parametrize('name', RELEASED)
def test_released_weights_name_a_backbone_and_files_of_a_known_format(name: str) -> None:
    released = RELEASED[name]
    assert released.arch in {'PyramidCPVT': PYRAMID_ARCHS, 'CPVT': PLAIN_ARCHS}[released.backbone]
    formats = {known for fmt in FORMATS if fmt.backbone == released.backbone for known in fmt.names}
    assert set(released.files.values()) <= formats
    urls = list(released.files)
    assert all(url.startswith('https://') for url in urls)
    assert CHECKSUM.search(urls[0]) and f'_{released.arch}' in urls[0] and f'_{released.arch}' in urls[1]
    assert 0 < released.top1 < 100 and 'arXiv' in released.source


def test_weights_are_found_by_their_name_and_by_their_urls() -> None:
    released = RELEASED['pyramid-cpvt-small']
    assert find_released('cpvt_mm://pyramid-cpvt-small') is released
    assert all(find_released(url) is released for url in released.files)
    assert find_released('https://example.org/a.pth') is None and find_released('a.pth') is None


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r'cpvt_mm://pyramid-cpvt-smal is not .*: did you mean pyramid-cpvt-small; '
                                        r'there are cpvt_mm://pyramid-cpvt-small, .*cpvt_mm://deit-base\.$'):
        find_released('cpvt_mm://pyramid-cpvt-smal')


def test_a_run_has_the_weights_at_its_address_not_those_of_a_file_of_that_name(
        server: Server, trained: dict[str, Trained], tmp_path: Path) -> None:
    config, checkpoint = trained['mmseg']
    content = read_checkpoint(checkpoint)
    found, name = [], 'decode_head.conv_seg.bias'
    for folder in 'ab':
        content['state_dict'][name] = torch.full_like(content['state_dict'][name], ord(folder))
        torch.save(content, tmp_path / 'file')
        address = server.add(f'/{folder}/iter_2.pth', (tmp_path / 'file').read_bytes())
        hook = Hook()
        hook.before_test = lambda runner: found.append(runner.model.get_parameter(name)[0].item())
        cfg = load_config(config, dict(test_dataloader=dict(dataset=dict(indices=1))), str(tmp_path / 'work_dir'))
        engine.test(cfg, address, hooks=[hook])
        found.append(build_inferencer(load_config(config), address, 'cpu').model.get_parameter(name)[0].item())
    assert found == [ord('a'), ord('a'), ord('b'), ord('b')]
