"""Runs each test file of the fast tier in a process of its own, or with --orders all files in random orders.

It shows that no test needs another one before it, and that none disturbs another. It uses the Python that runs it.
"""
import argparse
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.arguments import positive
from openmmlab_runs.errors import UserError, exit_on_error

ROOT = Path(__file__).parents[2]
PYTEST = (sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-m', 'not slow and not gpu')
# As `make test` sets them.
ENVIRONMENT = dict(CUDA_VISIBLE_DEVICES='', OMP_NUM_THREADS='1')
PASSED = (0, 5)  # 5: the file has slow tests only


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('files', nargs='*', help='test files; those of the fast tier if not given')
    parser.add_argument('--jobs', type=positive, default=1, help='runs of pytest at a time')
    parser.add_argument('--orders', type=int, default=0, metavar='N',
                        help='run all files together, in N random orders, with the seeds 0 to N - 1')
    parser.add_argument('--processes', nargs='+', type=positive, default=[1, 2, 4], metavar='N',
                        help='numbers of processes that --orders uses in turn')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/isolated_tests'),
                        help='folder for what failing runs print')
    return parser.parse_args()


def orders(files: Sequence[str], count: int, processes: Sequence[int]) -> dict[str, list[str]]:
    """Returns the arguments of pytest for each random order, by its name."""
    made = {}
    for seed in range(count):
        number = processes[seed % len(processes)]
        # Without the last option xdist would begin with the files that have most tests.
        made[f'seed {seed}, -n {number}'] = [
            *random.Random(seed).sample(files, len(files)), '-n', str(number), '--dist', 'loadfile',
            '--no-loadscope-reorder']
    return made


def run(name: str, arguments: Sequence[str], folder: Path) -> bool:
    """Runs pytest and prints its last line; keeps the output in a folder if it fails, and returns whether it passed."""
    done = subprocess.run([*PYTEST, *arguments], cwd=ROOT, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    lines = done.stdout.strip().splitlines()
    print(f'{name}: {lines[-1] if lines else "no output"}', flush=True)
    if done.returncode not in PASSED:
        (folder / f'{name.replace("/", "_")}.log').write_text('\n'.join([' '.join([*PYTEST, *arguments]), *lines]))
    return done.returncode in PASSED


@exit_on_error
def main() -> None:
    args = parse_args()
    files = args.files or sorted(str(path.relative_to(ROOT)) for path in ROOT.glob('tests/**/test_*.py')
                                 if 'gpu' not in path.parts)
    tasks: Mapping[str, Sequence[str]] = (
        orders(files, args.orders, args.processes) if args.orders else {file: [file] for file in files})
    args.work_dir.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(args.jobs) as threads:
        passed = threads.map(lambda name: run(name, tasks[name], args.work_dir), tasks)
    failed = [name for name, is_passed in zip(tasks, passed, strict=True) if not is_passed]
    if failed:
        raise UserError(f'{len(failed)} of {len(tasks)} fail ({"; ".join(failed)}): {args.work_dir} has their output.')
