"""A server of checkpoints on this machine, which pauses, ends early or does not answer, as the name of a file says."""
import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch

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


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    with Server(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def fetched(cache: Path) -> list[str]:
    """Names of files that are no locks, and that torch does not still write."""
    return sorted(path.name for path in cache.glob('*') if path.suffix not in ('.lock', '.partial'))
