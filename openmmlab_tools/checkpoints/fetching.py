"""Fetches checkpoints into the caches of torch and of the Hugging Face hub; a file is whole when it is used."""
import hashlib
import importlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch
from filelock import FileLock  # torch requires it
from mmengine.fileio import get_local_path
from mmengine.logging import print_log

from openmmlab_tools.errors import UserError, as_sentence, explain, first_line, show
from openmmlab_tools.files import whole_file
from openmmlab_tools.registry import FUNCTIONS
from openmmlab_tools.waiting import within

from .restricted import is_safetensors, parse

WAIT = 3600.  # seconds for a download, also by another process
ANSWER = 5.  # seconds for the first answer of a server
ON_HUB = re.compile(r'hf://([^/]+/[^/@]+)(?:@([^/]+))?(?:/(.*))?')  # owner and name, revision, file
# `name-<beginning of the file's SHA-256>.pth`, as torch and OpenMMLab name files; 20220308 is a date, 00010000 a step.
CHECKSUM = re.compile(r'-(?!(?:(?:19|20)\d{6}|00\d{6,})\.)([0-9a-f]{8,64})\.(?:pth|pt|bin|safetensors)$')


class Source(NamedTuple):
    addresses: tuple[str, ...]  # http(s)://, hf:// or paths, the preferred one first; all have the same weights
    terms: str | None = None  # a licence to print before the download; None for common licences


def source_of(address: str) -> Source | None:
    """Returns where the weights of an address such as `package://name` lie; None if no package says so.

    A package with a registry of mmengine's FUNCTIONS registers `source_of_weights(address)` there.
    """
    scope, sign, _ = address.partition('://')
    if not sign or not scope.isidentifier() or scope in ('http', 'https', 'hf'):
        return None
    try:
        find = FUNCTIONS.get(f'{scope}.source_of_weights')
    except RuntimeError:  # of mmengine, for a name that is no package
        return None
    return find(address) if find else None


@contextmanager
def fetched(path: str | Path) -> Iterator[str | Path]:
    """Yields a local file for a path, a URL, `hf://owner/name[@revision][/FILE]`, or an address that `source_of` knows.

    Downloads stay in the cache of torch (http, https) or of huggingface_hub (hf), which also reads your token. A failed
    download and a wrong checksum raise a UserError. Local paths are not checked.
    """
    address = str(path)
    if source := source_of(address):
        yield _cached(address, source.addresses, source.terms)
    elif address.startswith(('http://', 'https://', 'hf://')):
        yield _cached(address, [address])
    elif '://' not in address:
        yield path
    else:
        importlib.import_module('openmmlab_tools.storage')  # registers a file backend
        with ExitStack() as stack:
            with as_sentence(f'checkpoint {address} cannot be fetched', 'check the address; supported are paths, '
                             'http://, https://, hf:// and the schemes of mmengine.fileio'):
                local = stack.enter_context(get_local_path(address))
            yield local


def on_hub(address: str) -> dict[str, Any] | None:
    """Returns what a `hf://` address names, as arguments of huggingface_hub, or None; a UserError if it names no file.
    """
    if not address.startswith('hf://'):
        return None
    if not (match := ON_HUB.fullmatch(address)):
        raise UserError(f'checkpoint {address} is not a file of the Hugging Face hub: write hf://owner/name, for its '
                        'model.safetensors, hf://owner/name/FILE or hf://owner/name@revision/FILE.')
    return dict(repo_id=match[1], filename=match[3] or 'model.safetensors', revision=match[2] or 'main')


def cache_file(url: str) -> Path:
    """Returns the path of a URL's file in torch's cache; a name without a checksum gets a hash of the URL before it."""
    name = Path(urlparse(url).path).name
    if not CHECKSUM.search(name):
        name = f'{hashlib.sha256(url.encode()).hexdigest()[:8]}-{name}'
    return Path(torch.hub.get_dir(), 'checkpoints', name)


def in_cache(address: str) -> Path | None:
    """Returns the cached file of a `http(s)://` or `hf://` address, or the file at a path; None if there is no file."""
    if '://' not in address:
        return Path(address) if Path(address).exists() else None
    if place := on_hub(address):
        try:
            from huggingface_hub import try_to_load_from_cache
            file = try_to_load_from_cache(**place)
        except (ImportError, ValueError):  # the latter for a name that no repository can have
            return None
        return Path(file) if isinstance(file, str) else None
    return file if (file := cache_file(address)).exists() else None


def size_of(address: str) -> int | None:
    """Returns the bytes of a file on the disk, in its cache or in the net; None if the net does not answer.
    """
    if file := in_cache(address):
        return file.stat().st_size
    try:
        if place := on_hub(address):
            from huggingface_hub import get_hf_file_metadata, hf_hub_url
            return None if unreachable(place) else get_hf_file_metadata(hf_hub_url(**place), timeout=ANSWER).size
        with urlopen(Request(address, method='HEAD'), timeout=ANSWER) as answer:
            return int(answer.headers.get('Content-Length') or 0)
    except Exception:  # of many types, also of a package that is not installed
        return None


def unreachable(place: Mapping[str, Any]) -> str:
    """Returns why the hub does not answer within `ANSWER` seconds; '' if it does. It is asked once for a file, which
    `huggingface_hub.hf_hub_url` takes; the functions of huggingface_hub ask six times, and log each failure.
    """
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]
    url = hf_hub_url(**place)
    try:
        within(url, lambda: get_session().head(url, headers=build_hf_headers(), timeout=ANSWER), ANSWER)
    except ConnectionError as error:  # of huggingface_hub: HF_HUB_OFFLINE is set
        return first_line(error).rstrip('.')
    except Exception:  # of requests or httpx
        return f'{urlparse(url).netloc} does not answer'
    return ''


def _cached(address: str, places: Sequence[str], terms: str | None = None) -> Path:
    """Returns the file of the first place that is in its cache or can be downloaded."""
    file, failures = next((file for place in places if (file := in_cache(place))), None), list[str]()
    if not file and terms:
        print_log(f'these weights are under the {terms}', 'current', logging.WARNING)
    for place in () if file else places:
        try:
            file = _from_hub(place, file_of) if (file_of := on_hub(place)) else _from_web(place)
            break
        except UserError:  # of a package that is not installed
            raise
        except Exception as error:  # of many types
            failures.append(f'{place}: {explain(error)}')
    if not file:
        url = next((place for place in places if not on_hub(place)), None)
        local = f'download {url} on another machine and save it as {cache_file(url)}' if url else 'name a local file'
        raise UserError(f'checkpoint {address} cannot be fetched ({"; ".join(failures)}): check the address, the '
                        f'network, and that the cache (TORCH_HOME, HF_HOME) can be written. Or {local}. To start '
                        'from random weights instead, set init_cfg=None in the config (--cfg-options '
                        'model.backbone.init_cfg=None), or pass pretrained=False in Python.')
    for failure in failures:
        print_log(failure, 'current', logging.WARNING)
    if (named := CHECKSUM.search(file.name)) and not (checksum := sha256(file)).startswith(named[1]):
        raise UserError(f'checkpoint {address} ({file}) is damaged (its SHA-256 begins with {checksum[:8]}, not '
                        f'{named[1][:8]}): remove this file to fetch it again.')
    return file


def _from_hub(address: str, place: dict[str, Any]) -> Path:
    try:
        from huggingface_hub import hf_hub_download  # an optional package
    except ImportError as error:
        raise UserError(f'checkpoint {address} needs a package that is not installed: pip install huggingface_hub.'
                        ) from error
    show(f'fetching {address}')
    if reason := unreachable(place):
        raise ConnectionError(reason)
    return Path(hf_hub_download(**place))


def _from_web(url: str) -> Path:
    """Downloads the file of a URL, unless another process does: it is kept if its checksum is right and it can be read.
    """
    file = cache_file(url)
    file.parent.mkdir(parents=True, exist_ok=True)
    show(f'fetching {url} to {file}')
    with FileLock(f'{file}.lock', timeout=WAIT):
        if file.exists():
            return file
        named = CHECKSUM.search(file.name)
        with whole_file(file) as temporary:
            within(url, lambda: torch.hub.download_url_to_file(url, str(temporary), named and named[1], False), WAIT)
            try:  # torch does not tell whether it is whole, and networks with a login page answer with this page
                parse(temporary, is_safetensors(file))
            except UserError:
                raise
            except Exception as error:  # of many types
                with temporary.open('rb') as received:
                    start = received.read(16)
                raise ValueError('the received file is cut, damaged or no checkpoint of tensors and plain data, it '
                                 f'begins with {start!r}') from error
    return file


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
