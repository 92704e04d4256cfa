"""Runs random cases in separate processes, and reports how they end: with a result, with a sentence, or otherwise."""
import argparse
import io
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import torch

from openmmlab_tools.errors import UserError
from openmmlab_tools.texts import markdown_table

OUTCOMES = ('result', 'sentence', 'crashed', 'hung', 'other error')
RESULT, SENTENCE, OTHER = range(3)  # exit codes of the processes
Case = Callable[[], object]
Mutation = Callable[[random.Random, bytes], bytes]


class Ending(NamedTuple):
    """The result of a case: one of OUTCOMES, the seconds, the peak memory in MiB, and the last line of its error."""
    outcome: str
    seconds: float
    peak: float
    message: str


def run_alone(case: Case, memory: int, seconds: int) -> Ending:
    """Runs a case in its own process, with limits: `memory` in bytes, in addition to the memory at its start, and
    `seconds`.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile('w+') as errors:
        child = os.fork()
        if not child:
            status = OTHER
            try:
                warnings.simplefilter('ignore')
                logging.disable()
                torch.set_num_threads(1)  # threads do not live on in a fork
                signal.alarm(seconds)  # ends the process, whatever it does
                used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used + memory,) * 2)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                with redirect_stdout(io.StringIO()):
                    case()
                status = RESULT
            except (UserError, SystemExit) as error:
                is_sentence = '\n' not in str(error) and str(error).endswith('.')
                # A tool that lacks memory exits with a sentence, too.
                is_memory = isinstance(error, SystemExit) and isinstance(error.__context__, MemoryError)
                status = SENTENCE if is_sentence and not is_memory else OTHER
                print(repr(str(error)), file=errors)
            except BaseException as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                print(f'{Path(place.filename).name}:{place.lineno} {type(error).__name__}: {str(error)[:200]!r}',
                      file=errors)
            finally:
                errors.flush()
                os._exit(status)
        _, status, usage = os.wait4(child, 0)
        errors.seek(0)
        message = errors.read().strip()
    outcomes = {RESULT: 'result', SENTENCE: 'sentence', OTHER: 'other error', -signal.SIGALRM: 'hung'}
    outcome = outcomes.get(os.waitstatus_to_exitcode(status), 'crashed')
    return Ending(outcome, time.monotonic() - started, usage.ru_maxrss / 1024, message)


def parser(doc: str | None, count: int) -> argparse.ArgumentParser:
    """Makes the argument parser of a fuzzing command; `count` is the default number of cases."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument('--count', type=int, default=count, help='number of cases')
    made.add_argument('--seed', type=int, default=0, help='of the changes')
    made.add_argument('--kept', type=Path, default=Path('fuzz_failures'),
                      help='folder for cases that ended in neither a result nor a sentence')
    return made


def fuzz(args: argparse.Namespace, kinds: Sequence[str], prepare: Callable[[random.Random, str, Path], Case],
         scratch: Path, memory: int, seconds: int) -> None:
    """Runs cases of all kinds in turn, and prints a table by kind, and the messages of those that end otherwise.

    `prepare` writes a case of a kind to a new folder in `scratch`, and returns the call for `run_alone`. Exits with 1
    if a case ends in neither a result nor a sentence.
    """
    endings: dict[str, list[Ending]] = {kind: [] for kind in kinds}
    bad: Counter[str] = Counter()
    for number in range(args.count):
        kind, folder = kinds[number % len(kinds)], scratch / 'case'
        ending = run_alone(prepare(random.Random(f'{args.seed} {number}'), kind, folder), memory, seconds)
        endings[kind].append(ending)
        if ending.outcome not in ('result', 'sentence'):
            bad[f'{kind}, {ending.outcome}: {ending.message}'] += 1
            shutil.copytree(folder, args.kept / str(number), dirs_exist_ok=True)
        shutil.rmtree(folder)
    print(markdown_table(['kind', *OUTCOMES, 'longest, s', 'peak, MiB'], (
        (kind, *(sum(ending.outcome == outcome for ending in of_kind) for outcome in OUTCOMES),
         f'{max((ending.seconds for ending in of_kind), default=0):.2f}',
         f'{max((ending.peak for ending in of_kind), default=0):.0f}') for kind, of_kind in endings.items())))
    for text, times in bad.most_common():
        print(f'{times} x {text}')
    if bad:
        sys.exit(f'error: {bad.total()} of {args.count} cases ended in neither a result nor a sentence: {args.kept} '
                 'has them.')


def flip(rng: random.Random, content: bytes) -> bytes:
    """Changes one to eight bytes."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def cut(rng: random.Random, content: bytes) -> bytes:
    """Removes the end, or a part in the middle."""
    start = rng.randrange(len(content))
    return content[:start] + content[rng.choice((len(content), rng.randint(start, len(content)))):]


def insert(rng: random.Random, content: bytes) -> bytes:
    """Inserts random bytes, or a part of the file."""
    start, where = rng.randrange(len(content)), rng.randrange(len(content))
    part = rng.choice((rng.randbytes(rng.randint(1, 64)), content[start:start + 64]))
    return content[:where] + part + content[where:]
