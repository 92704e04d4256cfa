"""Data in an object store, a real server on this machine, and in archives; a wait has an end."""
import functools
import io
import os
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import fsspec
import pytest
import torch
from mmengine import fileio

from openmmlab_tools import engine, waiting
from openmmlab_tools.engine import load_config, train
from openmmlab_tools.storage import FsspecBackend
from openmmlab_tools.waiting import TooLong, within
from tests.helpers import refusal, toy_overrides
from tests.openmmlab_tools.resuming import assert_same
from tests.openmmlab_tools.toy import DETECTOR
from tests.processes import free_port, is_open, wait_until

FILES = {'a.json': b'{}', 'train/1.txt': b'one', 'train/2.png': b'two', 'train/deep/3.txt': b'three', '.hidden/x': b''}


@contextmanager
def served(*command: str) -> Iterator[str]:
    """Starts a server, the last argument of which is a port; yields its address."""
    port = free_port()
    process = subprocess.Popen([*command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_open(port))
        yield f'http://127.0.0.1:{port}'
    finally:
        process.kill()
        process.wait()


STORES = 's3', 'gs', 'az'


@pytest.fixture(scope='module')
def started() -> Iterator[Callable[..., str]]:
    """Starts servers, each once, that speak the protocols of S3, of Google's store and, by Azurite, of Microsoft's."""
    with ExitStack() as servers:
        yield functools.cache(lambda *command: servers.enter_context(served(*command)))


@pytest.fixture
def make_store(started: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Returns the address of an empty folder in a store, whose server and keys fsspec finds as those of a user."""

    def make(kind: str) -> str:
        name = tmp_path.name.replace('_', '-')
        monkeypatch.setenv('GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT', 'false')  # read at import; the server has no gRPC
        pytest.importorskip(dict(s3='s3fs', gs='gcsfs', az='adlfs')[kind])
        if kind == 'gs':
            pytest.importorskip('gcp_storage_emulator')
            address = started(sys.executable, '-m', 'gcp_storage_emulator', 'start', '--host', '127.0.0.1',
                              '--in-memory', '--default-bucket', 'bucket', '--port')
            monkeypatch.setitem(fsspec.config.conf, 'gs', dict(endpoint_url=address, token='anon'))
            return f'gs://bucket/{name}'
        if kind == 's3':
            pytest.importorskip('moto.server')
            address = started(sys.executable, '-m', 'moto.server', '-H', '127.0.0.1', '-p')
            monkeypatch.setenv('AWS_ACCESS_KEY_ID', 'me')
            monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', 'secret')
            monkeypatch.setitem(fsspec.config.conf, 's3', dict(endpoint_url=address))  # as FSSPEC_S3_ENDPOINT_URL does
        else:
            if not shutil.which('azurite-blob'):
                pytest.skip('needs azurite (npm install azurite)')
            address = started('azurite-blob', '--blobHost', '127.0.0.1', '--inMemoryPersistence',
                              '--skipApiVersionCheck', '--blobPort')
            monkeypatch.setenv('AZURE_STORAGE_CONNECTION_STRING', ';'.join((  # as Azurite documents them
                'DefaultEndpointsProtocol=http', 'AccountName=devstoreaccount1',
                'AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==',
                f'BlobEndpoint={address}/devstoreaccount1')))
        fsspec.filesystem(kind, skip_instance_cache=True).mkdir(name)
        return f'{kind}://{name}'

    return make


def packed(folder: Path, kind: str, make_store: Callable[[str], str]) -> str:
    """The address of the files of a folder in a store or archive."""
    files = {path.relative_to(folder): path for path in folder.rglob('*') if path.is_file()}
    if kind in STORES:
        address = make_store(kind)
        for name, path in files.items():
            fileio.put(path.read_bytes(), f'{address}/{name}')
        return address
    with zipfile.ZipFile(f'{folder}.zip', 'w') as file:  # without entries of folders
        for name, path in files.items():
            file.write(path, name)
    return f'zip://::{folder}.zip'


@pytest.mark.parametrize('kind', [*STORES, 'zip'])
def test_files_are_read_listed_told_apart_and_removed(kind: str, make_store: Callable[[str], str], tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in FILES.items():
        (tmp_path / 'files' / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'files' / name).write_bytes(content)
    root = packed(tmp_path / 'files', kind, make_store)
    train = fileio.join_path(root, 'train/')
    assert fileio.get(os.path.join(train, '1.txt')) == b'one'  # as datasets join paths
    assert fileio.get_text(root + '/train/deep/3.txt') == 'three'
    assert {*fileio.list_dir_or_file(root)} == {'a.json', 'train'}
    assert {*fileio.list_dir_or_file(train, list_dir=False, suffix='.txt', recursive=True)} == {'1.txt', 'deep/3.txt'}
    assert {*fileio.list_dir_or_file(train, list_file=False)} == {'deep'}
    with fileio.get_local_path(root + '/train/2.png') as path:
        assert Path(path).read_bytes() == b'two' and path.endswith('2.png')
    assert not Path(path).exists()
    for path, is_file, is_folder in (('a.json', True, False), ('train', False, True), ('no', False, False)):
        path = fileio.join_path(root, path)
        assert (fileio.isfile(path), fileio.isdir(path), fileio.exists(path)) == (
            is_file, is_folder, is_file or is_folder)
    with pytest.raises(FileNotFoundError, match=r'no\.txt'):
        fileio.get(f'{root}/no.txt')
    if kind == 'zip':
        with pytest.raises(OSError, match='is in an archive, which can only be read'):
            fileio.put(b'', f'{root}/a.txt')
        return
    with monkeypatch.context() as patch:
        patch.setattr('openmmlab_tools.storage.TRY', 0.)
        patch.setattr('openmmlab_tools.storage.PER_MEGABYTE', 60e6)  # a large file has more time: a minute for a byte
        assert fileio.get(f'{root}/train/1.txt') == b'one'
    fileio.remove(f'{root}/a.json')
    assert not fileio.exists(f'{root}/a.json')
    fileio.rmtree(train)
    assert not fileio.exists(train)


def s3_at(port: int, retries: int = 0) -> FsspecBackend:
    return FsspecBackend(endpoint_url=f'http://127.0.0.1:{port}', key='me', secret='secret',
                         config_kwargs=dict(retries=dict(max_attempts=retries)))


@contextmanager
def answers(reply: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server that does so with each connection; yields its port."""
    with socket.create_server(('127.0.0.1', 0)) as server, ExitStack() as kept:
        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection = kept.enter_context(server.accept()[0])
                    reply(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def response(status: str, body: bytes = b'', length: int | None = None) -> Callable[[socket.socket], None]:
    def reply(connection: socket.socket) -> None:
        has_body = not connection.recv(9999).startswith(b'HEAD')
        connection.sendall(f'HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n'
                           .encode() + body * has_body)
        connection.close()

    return reply


@pytest.mark.parametrize('reply, words', [
    (response('403 Forbidden'), 'cannot be accessed (PermissionError: Forbidden): check the keys'),
    (socket.socket.close, 'cannot be read or written (')], ids=['refuses', 'breaks off'])
def test_a_store_that_refuses_or_breaks_off_is_told(reply: Callable, words: str) -> None:
    pytest.importorskip('s3fs')
    with answers(reply) as port:
        assert refusal(s3_at(port).get, 's3://b/a.txt').startswith(f's3://b/a.txt {words}')


@pytest.mark.slow
def test_a_store_tries_again_after_a_fault(started: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('s3fs')
    replies = iter((response('200 OK', b'begins', 99), response('503 Slow Down')))
    with answers(lambda connection: next(replies, response('200 OK', b'whole'))(connection)) as port:
        assert s3_at(port, retries=4).get('s3://b/a.txt') == b'whole'  # 4 is the default
    assert not list(replies)


@pytest.mark.parametrize('call', [
    lambda store: store.get('s3://b/a.txt'), lambda store: store.put(b'', 's3://b/a.txt'),
    lambda store: store.exists('s3://b/a.txt'), lambda store: store.remove('s3://b/a.txt'),
    lambda store: list(store.list_dir_or_file('s3://b/a.txt'))], ids=['get', 'put', 'exists', 'remove', 'list'])
def test_a_store_that_never_answers_is_told(call: Callable, monkeypatch: pytest.MonkeyPatch, log: list) -> None:
    pytest.importorskip('s3fs')
    for name in ('waiting.WORD', 'waiting.ASKING', 'storage.TRY'):
        monkeypatch.setattr(f'openmmlab_tools.{name}', 0.1)
    with answers(lambda connection: None) as port:
        sentence = refusal(call, s3_at(port))
        assert sentence.endswith('s3://b/a.txt cannot be read or written (no answer in 0 seconds): '
                                 'check the address, and whether this machine reaches the store.')
    assert [message[-16:] for _, message in log] == ['s3://b/a.txt ...']


def test_what_ends_in_time_returns_or_raises_and_what_does_not_is_told_and_given_up(
        log: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, 'WORD', 0.01)
    hang = threading.Event()
    assert within('it', lambda: 3, 9) == 3
    with pytest.raises(KeyError, match='x'):
        within('it', lambda: {}['x'], 9)
    assert log == []
    with pytest.raises(TooLong, match='no answer in 0 seconds'):
        within('it', hang.wait, 0.05)
    assert log == [('INFO', 'waiting for it ...')]

    def more() -> float:
        hang.set()
        return 60

    assert within('it', hang.wait, 0.05, more) is True
    hang.clear()
    with pytest.raises(TooLong):
        within('it', hang.wait, 0.05, lambda: 1 / 0)  # the store does not say how long
    hang.set()


@pytest.mark.slow
@pytest.mark.parametrize('kind', [*STORES, 'zip'])
def test_models_train_on_data_where_it_lies(
        kind: str, toy_shapes: Path, tmp_path: Path, make_store: Callable[[str], str]) -> None:
    """Workers read it, too. The store also takes the checkpoints, from which training resumes."""
    root = packed(shutil.copytree(toy_shapes, tmp_path / 'toy'), kind, make_store)
    for name, source in (('local', str(toy_shapes)), ('remote', root)):
        options = toy_overrides(Path('x'), **{
            **{f'{loader}.dataset.data_root': f'{source}/' for loader in (
                'train_dataloader', 'val_dataloader', 'test_dataloader')},
            **{f'{split}_evaluator.ann_file': f'{source}/instances_validation.json' for split in ('val', 'test')},
            'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2, 'train_dataloader.num_workers': 1,
            'randomness.seed': 0, 'default_hooks.checkpoint.interval': 1})
        if name == 'remote' and kind in STORES:
            options['default_hooks.checkpoint.out_dir'] = f'{root}/runs'
        train(load_config(DETECTOR, options, str(tmp_path / name)))
    local, remote = (torch.load(io.BytesIO(fileio.get((tmp_path / name / 'last_checkpoint').read_text())))
                     for name in ('local', 'remote'))
    assert_same(local, remote)
    options['train_cfg.max_iters'] = 3
    train(load_config(DETECTOR, options, str(tmp_path / 'remote')), resume='auto')
    resumed = (tmp_path / 'remote/last_checkpoint').read_text()
    assert resumed.startswith(root.replace('s3:', 's3a:') if kind in STORES else str(tmp_path))
    assert resumed.endswith('iter_3.pth')
    assert engine.test(load_config(DETECTOR, options, str(tmp_path / 'test')), resumed)
