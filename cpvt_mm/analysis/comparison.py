"""Training one config with one position encoding after another, and testing each at several image sizes.

Every run has a folder, and every result a file in it that is written when it is whole: a study that was interrupted,
or is asked for more encodings, seeds or sizes, goes on from what is there.
"""
import json
import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.runner import find_latest_checkpoint

from cpvt_mm.engine import load_config, test, train
from cpvt_mm.errors import UserError, first_line
from cpvt_mm.files import write_text

from .inputs import load_backbone
from .progress import ReportIterations
from .recipe import check_recipe, write_recipe
from .sizes import Size, set_test_size

Encoding = dict[str, Any] | list[dict[str, Any]] | None
# What a run is doing, how much of it is done, and of how much.
State = tuple[str, int, int]


def read_encodings(path: str | Path) -> dict[str, Encoding]:
    """Reads names and values of `position_encoding` from a config file that sets `encodings`.

    Raises:
        UserError: If there is no such file, or it sets no such dict.
    """
    try:
        encodings = Config.fromfile(path).to_dict().get('encodings')
    except Exception as error:  # a config is a program, it can raise anything
        raise UserError(f'{path} cannot be read ({type(error).__name__}: {first_line(error)}): name a config file that '
                        'sets encodings.') from error
    if not isinstance(encodings, dict) or not encodings:
        raise UserError(f'encodings of {path} is {encodings!r}, but must be a dict of names and values of '
                        "position_encoding, such as {'none': None, 'PEG': dict(type='PEG')}.")
    names = {slug(name): name for name in encodings}
    for name in encodings:
        if names[slug(name)] != name:
            raise UserError(f'{name!r} and {names[slug(name)]!r} of {path} would share the folder {slug(name)}: rename '
                            'one.')
    return encodings


def slug(name: str) -> str:
    """A folder's name for an encoding's: small letters, digits and dashes."""
    return re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')


@dataclass(frozen=True)
class Run:
    """One training, and its tests.

    Attributes:
        config: Config file of mmdet or mmseg.
        encoding: Name of the encoding.
        position_encoding: Its config.
        seed: Of the training.
        work_dir: The study's folder; this run's is inside.
        options: Values of the config to override. Defaults to none.
    """
    config: str | Path
    encoding: str
    position_encoding: Encoding
    seed: int
    work_dir: Path
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f'{self.encoding}, seed {self.seed}'

    @property
    def folder(self) -> Path:
        return self.work_dir / slug(self.encoding) / f'seed_{self.seed}'

    def load(self) -> Config:
        """The run's config, complete."""
        cfg = load_config(self.config, self.options, work_dir=str(self.folder))
        cfg.model.backbone.position_encoding = self.position_encoding
        cfg.randomness = dict(cfg.get('randomness', {}), seed=self.seed)
        cfg.log_level = 'WARNING'
        return cfg

    def claim_folder(self) -> None:
        """Sees that the run is possible, and that the folder is its own.

        Raises:
            UserError: If the backbone cannot be built, no test size be set, or the folder holds results of another
                config.
        """
        cfg = self.load()
        recipe = {key: value for key, value in cfg.to_dict().items() if key != 'work_dir'}
        if not check_recipe(self.folder, recipe, f'config of {self.encoding!r}'):
            set_test_size(cfg, Size(1, 1))
            load_backbone(cfg)
            write_recipe(self.folder, recipe)

    def train(self, on_iteration: Callable[[int, int], None]) -> None:
        """Trains, or goes on from the last checkpoint; nothing to do where that is finished.

        Args:
            on_iteration: Called with the iterations that are done and those there are.
        """
        finished = self.folder / 'finished.txt'
        if not finished.exists():
            train(self.load(), resume='auto', hooks=[ReportIterations(on_iteration)])
            write_text(finished, Path(find_latest_checkpoint(self.folder)).name)

    def test(self, size: int) -> None:
        """Tests, with images resized to fit a square of `size` pixels a side; nothing to do where that is done."""
        if not self._results(size).exists():
            cfg = self.load()
            set_test_size(cfg, Size(size, size))
            metrics = test(cfg, self.folder / (self.folder / 'finished.txt').read_text())
            write_text(self._results(size), json.dumps({name: float(value) for name, value in metrics.items()}))

    def is_complete(self, sizes: Sequence[int]) -> bool:
        return all(self._results(size).exists() for size in sizes)

    def metrics(self, size: int) -> dict[str, float]:
        """By name; of a test that is done."""
        return json.loads(self._results(size).read_text())

    def _results(self, size: int) -> Path:
        return self.folder / f'test_{size}.json'


def complete(runs: Sequence[Run], sizes: Sequence[int], jobs: int = 1) -> Iterator[dict[str, State]]:
    """Trains and tests what is not yet done, several runs at a time, each in a process with its share of the cores.

    Threads of one process that wait for each other are slow where another process has a core, so processes are what
    shares a machine. When the caller ends, or a run fails, all of them end at once.

    Args:
        runs: All of them.
        sizes: Of the test images, in pixels a side.
        jobs: Processes. Defaults to 1.

    Yields:
        Every half second, the state of each run that has begun, by name.

    Raises:
        Exception: What a run raised.
    """
    waiting = [run for run in runs if not run.is_complete(sizes)]
    if not waiting:
        return
    threads = max((os.cpu_count() or 1) // jobs, 1)
    context = multiprocessing.get_context('spawn')  # torch's threads do not survive a fork
    with context.Manager() as manager:
        states, errors, running = manager.dict(), manager.list(), []
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    process = context.Process(target=_complete, args=(waiting.pop(0), sizes, threads, states, errors))
                    process.start()
                    running.append(process)
                connection.wait([process.sentinel for process in running], timeout=0.5)
                # Asked once: one that ends between two questions would be lost.
                ended = [process for process in running if not process.is_alive()]
                if errors:
                    raise errors[0]
                for process in ended:
                    if process.exitcode:
                        raise UserError(f'a training ended with status {process.exitcode}: its messages are above.')
                    running.remove(process)
                yield dict(states)
        finally:
            for process in running:
                process.terminate()
                process.join()


def _complete(run: Run, sizes: Sequence[int], threads: int, states: MutableMapping[str, State],
              errors: MutableSequence[Exception]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    torch.set_num_threads(threads)

    def on_iteration(done: int, total: int) -> None:
        states[str(run)] = 'training', done, total

    try:
        run.train(on_iteration)
        for done, size in enumerate(sizes):
            states[str(run)] = 'testing', done, len(sizes)
            run.test(size)
        states[str(run)] = 'done', len(sizes), len(sizes)
    except Exception as error:
        errors.append(error)
        raise
