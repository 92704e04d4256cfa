"""Processes in tests: waiting for them, and ports for them."""
import socket
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def free_port() -> int:
    """Returns a port of the loopback that nothing uses at the moment."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        return int(free.getsockname()[1])


def is_open(port: int) -> bool:
    """Returns whether a server listens at a port of the loopback."""
    with socket.socket() as client:
        return client.connect_ex(('127.0.0.1', port)) == 0


def is_alive(pid: int) -> bool:
    try:
        # One that has ended, but that nobody waits for, is a zombie.
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except FileNotFoundError:
        return False
