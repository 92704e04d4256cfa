"""Prints how many processor seconds commands need from their start, and which five imports of each take longest.

Each command runs several times in a process of its own; the table has the median. --versus measures another clone in
turns with this one. On a machine with nothing else to do, one thread needs as long on the clock. Other work makes the
numbers somewhat larger, so compare numbers of one run only.
"""
import argparse
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from lab.arguments import positive
from openmmlab_tools.errors import UserError, exit_on_error
from openmmlab_tools.texts import markdown_table

ROOT = Path(__file__).parents[2]
HELP = [f'-m cpvt_mm {words}' for words in (
    '--help', '--version', 'trian', 'train --help', 'predict --help', 'new-config --help', 'swap --help',
    'export --help')]
IMPORTS = ['-c pass', '-c "import torch"', '-c "import cpvt_mm"']
RUNS = ['-m cpvt_mm predict demo/nuclei/example.png --out-dir {out}']


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('commands', nargs='*', metavar='COMMAND', help='arguments of Python in quotes, such as "-m '
                        'cpvt_mm --help"; {out} is a new folder (default: imports, help and one prediction)')
    parser.add_argument('--rounds', type=positive, default=3, help='runs of each command (default: %(default)s)')
    parser.add_argument('--versus', type=Path, metavar='CLONE', help='also measure the code in another clone')
    return parser.parse_args()


def run(command: str, clone: Path, *options: str) -> tuple[float, str]:
    """Runs Python in a clone; returns the processor seconds, and what it prints to stderr."""
    with TemporaryDirectory() as out:
        words = [word.format(out=out) for word in shlex.split(command)]
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, *options, *words], cwd=clone, capture_output=True, text=True,
                              env={**os.environ, 'PYTHONPATH': str(clone)})
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
    if 'Traceback' in done.stderr:
        raise UserError(f'python {command} fails in {clone}: {done.stderr.splitlines()[-1]}')
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime, done.stderr


def longest_imports(report: str) -> list[str]:
    """Returns the five modules whose own code takes longest, with its seconds, from what `-X importtime` prints."""
    rows = [line.removeprefix('import time:').split('|') for line in report.splitlines()
            if line.startswith('import time:') and 'self' not in line]
    modules = sorted(((int(seconds), name.strip()) for seconds, _, name in rows), reverse=True)
    return [f'{name} {microseconds / 1e6:.2f}' for microseconds, name in modules[:5]]


@exit_on_error
def main() -> None:
    args = parse_args()
    clones = [ROOT, *([args.versus.resolve()] if args.versus else [])]
    rows = []
    for command in args.commands or [*IMPORTS, *HELP, *RUNS]:
        turns = [[run(command, clone)[0] for clone in clones] for _ in range(args.rounds)]
        _, report = run(command, ROOT, '-X', 'importtime')
        rows.append([f'`python {command}`',
                     *(f'{median(seconds):.2f}' for seconds in zip(*turns, strict=True)),
                     ', '.join(longest_imports(report))])
        print(*rows[-1], file=sys.stderr, flush=True)
    print(markdown_table(('command', *(f's, {clone.name}' for clone in clones), 'longest imports, s'), rows), end='')
