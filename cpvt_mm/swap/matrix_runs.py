"""The matrix of swaps in several processes, written down one by one so that it can be resumed."""
import contextlib
import json
import logging
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.progress import Progress

from cpvt_mm.errors import UserError
from cpvt_mm.processes import end_with_parent
from cpvt_mm.stack import require

from .matrix import ARCH_TO_BUILD, ARCH_TO_RUN, Record, Trial, check, list_configs, run
from .writing import shipped_configs

Result = TypeVar('Result', Record, Trial)


def check_all(libraries: Sequence[str], families: Sequence[str] | None, jobs: int, work_dir: Path,
              progress: Progress) -> list[Record]:
    """A record for each config of the libraries, in order.

    Args:
        libraries: Of 'mmdet', 'mmseg'.
        families: First folders of the configs to take; None for all.
        jobs: Processes, of one thread each.
        work_dir: What its records.jsonl has is not done again, but for what may be mended: failed and unavailable.
        progress: Gets a bar.

    Raises:
        UserError: If no config is in `families`, or a process dies.
    """
    todo = [(library, config) for library in libraries for config in list_configs(library)
            if families is None or config.split('/')[0] in families]
    if not todo:
        raise UserError(f'no config is in {", ".join(families or libraries)}: name folders of the libraries\' configs.')
    file = work_dir / 'records.jsonl'
    found = {(record.library, record.config): record for record in _read(file, Record)
             if record.outcome not in ('failed', 'unavailable')}
    for record in _in_processes(check, [(*key, ARCH_TO_BUILD) for key in todo if key not in found], jobs, file,
                                _bar(progress, 'Swapping', len(todo), sum(key in found for key in todo))):
        found[record.library, record.config] = record
    return [found[key] for key in todo]


def try_all(records: Sequence[Record], jobs: int, work_dir: Path, progress: Progress) -> list[Trial]:
    """A trial for each family that has a config that was built: of the first of them. Arguments as of `check_all`."""
    first: dict[tuple[str, str], str] = {}
    for record in records:
        if record.outcome == 'built':
            first.setdefault((record.library, record.family), record.config)
    file = work_dir / 'trials.jsonl'
    found = {(trial.library, trial.config): trial for trial in _read(file, Trial) if trial.outcome == 'ran'}
    todo = [(library, config) for (library, _), config in first.items()]
    for trial in _in_processes(run, [(*key, ARCH_TO_RUN) for key in todo if key not in found], jobs, file,
                               _bar(progress, 'Running', len(todo), sum(key in found for key in todo))):
        found[trial.library, trial.config] = trial
    return [found[key] for key in todo]


def _bar(progress: Progress, name: str, total: int, done: int) -> Callable[[], None]:
    task = progress.add_task(name, total=total, completed=done)
    return lambda: progress.advance(task)


def _read(file: Path, kind: type[Result]) -> list[Result]:
    """The results in a file; a last line that was cut off does not count."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [kind(**json.loads(line)) for line in lines if line.endswith('\n')]


def _in_processes(function: Callable[..., Result], arguments: Sequence[tuple[str, ...]], jobs: int, file: Path,
                  advance: Callable[[], None]) -> Iterator[Result]:
    """Results of a function for each of the arguments, as they come, each written to a file first."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # Not as a context, whose end would have all that is submitted done.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context('spawn'), _start_worker)
    try:
        with _lines(file) as write:
            futures: list[Future[Result]] = [pool.submit(_quietly, function, *item) for item in arguments]
            for future in as_completed(futures):
                result = future.result()
                write(json.dumps(asdict(result)) + '\n')
                advance()
                yield result
    except BrokenProcessPool as error:
        raise UserError('a process died, as for want of memory: run again with fewer jobs; what is done is kept.'
                        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _lines(file: Path) -> Iterator[Callable[[str], Any]]:
    """Appends to a file, of which a line that was cut off is taken away first."""
    if file.exists():
        text = file.read_text()
        file.write_text(text[:text.rfind('\n') + 1])
    with file.open('a') as stream:
        def write(line: str) -> None:
            stream.write(line)
            stream.flush()
        yield write


def _start_worker() -> None:
    end_with_parent()
    os.chdir(shipped_configs('mmdet').parent)  # where configs look for those of their teachers
    os.environ['HF_HUB_OFFLINE'] = '1'  # nothing is downloaded
    # Some layers of mmcv can only be built in a group of processes.
    torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter('ignore')
    with contextlib.suppress(ImportError):  # some configs are for its backbones
        require('mmpretrain')


def _quietly(function: Callable[..., Result], *arguments: str) -> Result:
    """Calls a function without the text that models and constructors print."""
    with open(os.devnull, 'w') as sink, contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        return function(*arguments)
