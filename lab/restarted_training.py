"""A training of several processes on this machine, whose commands are started again when they end."""
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tests.processes import free_port

ROOT = Path(__file__).parents[1]
STARTS = 4  # that a training may take


class Training:
    """A training of some nodes (NNODES); files beside its work dir log it."""

    def __init__(self, work_dir: Path, config: Path, nodes: str, env: Mapping[str, str] = {}) -> None:
        self.work_dir, self.config, self.nodes, self.more = work_dir, config, nodes, env
        self.progress = Path(f'{work_dir}.progress')
        self.port = free_port()
        self.agents: dict[int, subprocess.Popen] = {}
        self.starts = 0

    def start(self, node: int) -> None:
        self.starts += 1
        env = {**os.environ, 'PYTHON': sys.executable, 'PYTHONPATH': str(ROOT),
               'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': '', 'NNODES': self.nodes, 'PORT': str(self.port),
               'MAX_RESTARTS': '3', 'PET_SHUTDOWN_TIMEOUT': '5', **self.more,
               'PET_RDZV_CONF': 'keep_alive_interval=1,last_call_timeout=2'}
        with open(f'{self.work_dir}.{node}.log', 'a') as log:
            self.agents[node] = subprocess.Popen(
                [ROOT / 'tools/dist_train.sh', self.config, '2' if self.nodes == '1' else '1', '--resume', '--work-dir',
                 self.work_dir], stdout=log, stderr=log, env=env, start_new_session=True)

    def lines(self) -> list[list[int]]:
        """Lists rank, process and number of each iteration; the number is -1 when a process begins."""
        text = self.progress.read_text() if self.progress.exists() else ''
        return [[int(word) for word in line.split()] for line in text.splitlines()]

    def wait_for(self, done: int) -> bool:
        """Waits until an iteration is trained; returns False if the training ends before."""
        while not any(number >= done for _, _, number in self.lines()):
            if any(agent.poll() is not None for agent in self.agents.values()):
                return False
            time.sleep(0.02)
        return True

    def rank(self, number: int) -> int:
        """Returns the process that was a rank last."""
        return [process for rank, process, _ in self.lines() if rank == number][-1]

    def kill(self, node: int) -> None:
        """Kills a node at once: torchrun, its ranks, and their workers."""
        family = list(descendants(self.agents[node].pid))
        for process in family:
            send(process, signal.SIGKILL)
        self.agents.pop(node).wait()

    def end(self, deadline: float) -> bool:
        """Starts again what ends, until one command is done."""
        while time.monotonic() < deadline:
            for node, agent in list(self.agents.items()):
                if agent.poll() == 0:
                    return True
                if agent.poll() is not None and self.starts < STARTS:
                    self.start(node)
            time.sleep(0.1)
        return False

    def clean(self) -> None:
        for node in list(self.agents):
            self.kill(node)


def descendants(process: int) -> Iterator[int]:
    """Yields a process and all below it."""
    yield process
    with suppress(OSError):
        for children in Path(f'/proc/{process}/task').glob('*/children'):
            for child in children.read_text().split():
                yield from descendants(int(child))


def send(process: int, number: signal.Signals) -> bool:
    """Returns whether the process was there to get the signal."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True
