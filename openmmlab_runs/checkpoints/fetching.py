"""Downloads checkpoints into torch's cache; checks each file and never leaves a partial one."""
import glob
import hashlib
import importlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch
from filelock import AcquireReturnProxy, FileLock, Timeout  # torch requires it
from mmengine.fileio import get_local_path
from mmengine.logging import print_log

from openmmlab_runs.errors import UserError, first_line, show
from openmmlab_runs.files import remove_leftovers, whole_file
from openmmlab_runs.waiting import WORD

from .restricted import is_safetensors, parse

TIMEOUT = 30.  # seconds to wait for a connection, or for the next part of a file
SPAN, LEAST = 60., 60_000  # seconds, and the bytes that a download must get in each such span
WAIT = 3600.  # seconds to wait for the download of another process
HUB = 'https://huggingface.co'
ON_HUB = re.compile(r'hf://([^/]+/[^/@]+)(?:@([^/]+))?(?:/(.*))?')  # owner and name, revision, file
# `name-<beginning of the file's SHA-256>.pth`, as torch and OpenMMLab name files; 20220308 is a date, 00010000 a step.
CHECKSUM = re.compile(r'-(?!(?:(?:19|20)\d{6}|00\d{6,})\.)([0-9a-f]{8,64})\.(?:pth|pt|bin|safetensors)$')


class Source(NamedTuple):
    urls: tuple[str, ...]  # the preferred one first; all have the same weights
    sha256: str | None = None  # of the last one's file, in hexadecimal; None if it is not known
    terms: str | None = None  # a licence that is told before the download; None if it needs no word


# Packages append a function that returns the source of an address of their own, or of one of its URLs; None for others.
SOURCES: list[Callable[[str], Source | None]] = []


def _source(address: str) -> Source | None:
    return next((source for find in SOURCES if (source := find(address))), None)


@contextmanager
def fetched(path: str | Path) -> Iterator[str | Path]:
    """Yields the local file of a path, URL, `hf://owner/name[@revision][/FILE]`, or address that SOURCES knows.

    Files from http(s) stay in torch's cache. Repositories of the hub get the token of HF_TOKEN, or of `token` in
    HF_HOME. A failed download and a wrong checksum are UserErrors. A local path is not checked.
    """
    address = str(path)
    if '://' not in address:
        yield path
    elif urls := _urls(address):
        yield _cached(address, urls)
    else:
        importlib.import_module('openmmlab_runs.storage')  # registers a file backend
        with ExitStack() as stack:
            try:
                local = stack.enter_context(get_local_path(address))
            except Exception as error:  # of mmengine's many file backends
                raise UserError(f'checkpoint {address} cannot be fetched ({_short(error)}): check the address; '
                                'supported are paths, http://, https://, hf:// and the schemes of '
                                'mmengine.fileio.') from error
            yield local


def _urls(address: str) -> Sequence[str]:
    if (source := _source(address)) and address not in source.urls:
        return source.urls
    if not address.startswith('hf://'):
        return (address,) if address.startswith(('http://', 'https://')) else ()
    if not (found := ON_HUB.fullmatch(address)):
        raise UserError(f'checkpoint {address} is not a file of the Hugging Face hub: write hf://owner/name, for its '
                        'model.safetensors, hf://owner/name/FILE or hf://owner/name@revision/FILE.')
    return (f'{HUB}/{found[1]}/resolve/{found[2] or "main"}/{found[3] or "model.safetensors"}',)


def cache_file(url: str) -> Path:
    """Returns the path of a URL's file in torch's cache; a name without a checksum gets a hash of the URL before it."""
    name = Path(urlparse(url).path).name
    if not CHECKSUM.search(name):
        name = f'{hashlib.sha256(url.encode()).hexdigest()[:8]}-{name}'
    return Path(torch.hub.get_dir(), 'checkpoints', name)


def _cached(address: str, urls: Sequence[str]) -> Path:
    """Returns the cached file of the first URL that is in the cache or can be downloaded."""
    files = {url: cache_file(url) for url in urls}
    first, failures = files[urls[0]], list[str]()
    url = next((url for url, file in files.items() if file.exists()), '')
    try:
        if not url:
            first.parent.mkdir(parents=True, exist_ok=True)
            # One process per machine downloads. The others wait here and then find the file.
            with _locked(first, address):
                url, failures = _download_first(files)
    except Timeout as error:
        parts = [part for file in files.values() for part in file.parent.glob(f'{glob.escape(file.name)}.*.tmp')]
        who = ', '.join(f'process {part.suffixes[-3][1:]}, which writes {part}' for part in parts) or 'another process'
        raise UserError(f'checkpoint {address} is not there after {WAIT:g} s, it is being fetched by {who}: wait until '
                        'that ends, or end it, then start again.') from error
    except OSError as error:
        raise UserError(f'checkpoint {address} cannot be written to the cache ({_short(error)}): set the environment '
                        'variable TORCH_HOME to a writable folder.') from error
    if not url:
        raise UserError(f'checkpoint {address} cannot be fetched ({"; ".join(failures)}): check the address and the '
                        f'network, or download {urls[0]} elsewhere and save it as {first}, or train without it '
                        '(init_cfg=None, on the command line --cfg-options model.backbone.init_cfg=None).')
    try:
        _check_sum(url, files[url])
    except ValueError as error:
        raise UserError(f'checkpoint {address} ({files[url]}) is damaged ({error}): remove this file to fetch it again.'
                        ) from error
    return files[url]


def _locked(file: Path, address: str) -> AcquireReturnProxy:
    lock = FileLock(f'{file}.lock')
    try:
        return lock.acquire(timeout=min(WORD, WAIT))
    except Timeout:
        show(f'waiting for {address}, which another process fetches ...')
        return lock.acquire(timeout=WAIT)


def _download_first(files: dict[str, Path]) -> tuple[str, list[str]]:
    """Downloads from the first URL that works, unless the cache has one; returns it, or '', and the errors before."""
    failures: list[str] = []
    for url, file in files.items():
        if file.exists():
            return url, failures
    for url, file in files.items():
        try:
            _download(url, file)
            return url, failures
        except (OSError, HTTPException, ValueError) as error:
            failures.append(f'{url}: {_short(error)}')
            print_log(failures[-1], 'current', logging.WARNING)
    return '', failures


def _download(url: str, target: Path) -> None:
    """Writes the file of a URL to `target`, if it is complete and passes its checks, and else raises a ValueError."""
    request = Request(url, headers={'User-Agent': 'openmmlab_runs'})
    if url.startswith(f'{HUB}/'):
        request.full_url = (os.environ.get('HF_ENDPOINT') or HUB).rstrip('/') + url.removeprefix(HUB)
        if token := _token():
            request.add_unredirected_header('Authorization', f'Bearer {token}')  # to no host but this one
    remove_leftovers(target.parent, glob.escape(target.name))
    show(f'fetching {request.full_url} to {target}')
    if (source := _source(url)) and source.terms:
        print_log(f'these weights are under the {source.terms}', 'current', logging.WARNING)
    with urlopen(request, timeout=TIMEOUT) as response, whole_file(target) as temporary:
        count, before, end = 0, 0, time.monotonic() + SPAN
        with temporary.open('wb') as file:
            while part := response.read1(1 << 20):  # does not wait for a whole MiB
                file.write(part)
                count += len(part)
                if time.monotonic() > end:
                    if count - before < LEAST:
                        raise ValueError(f'only {count - before} bytes were received in {SPAN:g} s')
                    before, end = count, time.monotonic() + SPAN
        length = response.headers['Content-Length']
        if length is not None and count != int(length):
            raise ValueError(f'only {count} of {length} bytes were received')
        _check_sum(url, temporary, target.name)
        with temporary.open('rb') as file:
            start = file.read(16)
        # Networks with a login page answer any request with this page.
        if not start.startswith((b'PK', b'\x80')) and start[8:9] != b'{':
            raise ValueError(f'the received file is not a checkpoint, it begins with {start!r}')
        try:  # without a Content-Length, nothing else tells that it is whole
            parse(temporary, is_safetensors(target))
        except UserError:
            raise
        except Exception as error:  # of many types
            raise ValueError('the received file is cut or damaged, or contains code or objects other than tensors'
                             ) from error


def _check_sum(url: str, file: Path, name: str | None = None) -> None:
    """Raises a ValueError if a file has another SHA-256 than that in its name, or that its source tells."""
    source, named = _source(url), CHECKSUM.search(name or file.name)
    wanted = named[1] if named else source.sha256 if source and url == source.urls[-1] else None
    if wanted and not (found := sha256(file)).startswith(wanted):
        raise ValueError(f'the SHA-256 of the file begins with {found[:8]}, not {wanted[:8]}')


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _token() -> str:
    """Returns the user's token for the hub, as huggingface_hub finds it; '' if there is none."""
    home = os.environ.get('HF_HOME') or Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache', 'huggingface')
    file = Path(home, 'token').expanduser()
    token = os.environ.get('HF_TOKEN') or (file.read_text() if file.is_file() else '')
    return ''.join(token.split())  # an error about a header with a line break would show it


def _short(error: BaseException) -> str:
    return f'{type(error).__name__}: {first_line(error)}'
