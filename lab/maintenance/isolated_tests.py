"""Runs each test file of the fast tier in a process of its own, or with --orders all files in random orders.

It shows that no test needs another one before it, and that none disturbs another. It uses the Python that runs it. Run
it again to continue: what has passed with this Python is not run again, so choose another work dir after a change.
"""
import argparse
import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from lab.arguments import check_least
from openmmlab_runs.cli import resumable
from openmmlab_runs.errors import UserError, exit_on_error

ROOT = Path(__file__).parents[2]

PYTEST = (sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-m', 'not slow and not gpu')
# As `make test` sets them.
ENVIRONMENT = dict(CUDA_VISIBLE_DEVICES='', OMP_NUM_THREADS='1')
PASSED = (0, 5)  # 5: the file has slow tests only
class Result(NamedTuple):
    """The outcome of one run of pytest.

    Attributes:
        name: The file, or the order.
        python: The interpreter.
        status: What pytest exited with.
        last: The last line that it printed.
    """
    name: str
    python: str
    status: int
    last: str


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('files', nargs='*', help='test files; those of the fast tier if not given')
    parser.add_argument('--jobs', type=int, default=1, help='runs of pytest at a time')
    parser.add_argument('--orders', type=int, default=0, metavar='N',
                        help='run all files together, in N random orders, with the seeds 0 to N - 1')
    parser.add_argument('--processes', nargs='+', type=int, default=[1, 2, 4], metavar='N',
                        help='numbers of processes that --orders uses in turn')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/isolated_tests'),
                        help='folder for the results, and for what failing runs print')
    return parser.parse_args()


def fast_files() -> list[str]:
    files = sorted(path.relative_to(ROOT) for path in (ROOT / 'tests').rglob('test_*.py'))
    return [str(path) for path in files if path.parts[1] != 'gpu']


def orders(files: Sequence[str], number: int, processes: Sequence[int]) -> dict[str, list[str]]:
    """Returns the arguments of pytest for each order, by name."""
    found = {}
    for seed in range(number):
        count = processes[seed % len(processes)]
        # Without the last option xdist would begin with the files that have most tests.
        found[f'seed {seed}, -n {count}'] = [
            *random.Random(seed).sample(files, len(files)), '-n', str(count), '--dist', 'loadfile',
            '--no-loadscope-reorder']
    return found


def run(name: str, arguments: Sequence[str], folder: Path) -> Result:
    """Runs pytest; a run that fails leaves its output in the folder."""
    command = [*PYTEST, *arguments]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode not in PASSED:
        (folder / f'{re.sub(r"[^a-z0-9]+", "-", name)}.log').write_text(f'{shlex.join(command)}\n{done.stdout}')
    return Result(name, sys.executable, done.returncode, ['', *done.stdout.splitlines()][-1])


def run_all(tasks: Mapping[str, Sequence[str]], jobs: int, folder: Path) -> Iterator[Result]:
    """Runs what has not passed yet; each result is a line of a file, too."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as threads, (folder / 'results.jsonl').open('a') as file:
        futures = [threads.submit(run, name, arguments, folder) for name, arguments in tasks.items()]
        try:
            for future in as_completed(futures):
                result = future.result()
                file.write(json.dumps(result._asdict()) + '\n')
                file.flush()
                yield result
        finally:
            threads.shutdown(cancel_futures=True)


def passed(folder: Path) -> set[str]:
    path = folder / 'results.jsonl'
    results = [Result(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    return {result.name for result in results if result.python == sys.executable and result.status in PASSED}


@exit_on_error
@resumable
def main() -> None:
    args = parse_args()
    check_least(args, 1, 'jobs', 'processes')
    check_least(args, 0, 'orders')
    files = args.files or fast_files()
    tasks = orders(files, args.orders, args.processes) if args.orders else {file: [file] for file in files}
    before = passed(args.work_dir) & tasks.keys()
    print(f'{len(before)} of {len(tasks)} have passed before.')
    todo = {name: arguments for name, arguments in tasks.items() if name not in before}
    failed, start = [], time.monotonic()
    for number, result in enumerate(run_all(todo, args.jobs, args.work_dir), start=1):
        print(f'[{number}/{len(todo)}, {time.monotonic() - start:.0f} s] {result.name}: {result.last}', flush=True)
        if result.status not in PASSED:
            failed.append(result.name)
    if failed:
        raise UserError(f'{len(failed)} of {len(tasks)} fail ({"; ".join(failed)}): {args.work_dir} has their output.')


if __name__ == '__main__':
    main()
