"""Waiting for processes in tests."""
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    try:
        # One that has ended, but that nobody waits for, is a zombie.
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except FileNotFoundError:
        return False
