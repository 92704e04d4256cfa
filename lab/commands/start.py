"""Prints how many processor seconds commands need from their start, and which five imports of each take longest.

Each command runs several times in a process of its own; the table has the median. --versus measures another clone in
turns with this one. On a machine with nothing else to do, one thread needs as long on the clock. Other work makes the
numbers somewhat larger, so compare numbers of one run only.

The data of the commands is 30 copies of the example of demo/nuclei, with what the shipped model finds in it as labels.
"""
import argparse
import json
import os
import resource
import shlex
import shutil
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
MODEL = 'demo/nuclei/config.py demo/nuclei/model.safetensors'
PREDICT = '-m cpvt_mm predict demo/nuclei/example.png --out-dir {out}'
RUNS = [PREDICT, '-m cpvt_mm new-config {data}/30 {out}/nuclei.py --task instances --arch nano',
        f'-m cpvt_mm test {MODEL} --work-dir {{out}} --report {{out}}/report --cfg-options '
        'test_dataloader.dataset.data_root={data}/6/ test_dataloader.dataset.ann_file=instances.json '
        'test_dataloader.dataset.data_prefix.img=images test_evaluator.ann_file={data}/6/instances.json']


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('commands', nargs='*', metavar='COMMAND', help='arguments of Python in quotes, such as "-m '
                        'cpvt_mm --help"; {out} is a new folder, {data}/30 and {data}/6 contain images with labels '
                        '(default: imports, help, one prediction, a new config of 30 images, and a test of six)')
    parser.add_argument('--rounds', type=positive, default=3, help='runs of each command (default: %(default)s)')
    parser.add_argument('--versus', type=Path, metavar='CLONE', help='also measure the code in another clone')
    return parser.parse_args()


def write_data(folder: Path) -> None:
    """Writes images with labels in COCO's layout to the folders `30` and `6`, which have the names of their numbers."""
    run(PREDICT, ROOT, folder, out=folder / 'predicted')
    coco = json.loads((folder / 'predicted/predictions.json').read_text('utf-8'))
    objects = [annotation for annotation in coco['annotations'] if annotation['score'] > 0.5]
    for count in (30, 6):
        images = folder / str(count) / 'images'
        images.mkdir(parents=True)
        for index in range(1, count + 1):
            shutil.copy(ROOT / 'demo/nuclei/example.png', images / f'{index}.png')
        (images.parent / 'instances.json').write_text(json.dumps(dict(
            images=[dict(coco['images'][0], id=index, file_name=f'{index}.png') for index in range(1, count + 1)],
            annotations=[dict(annotation, id=number * len(objects) + place, image_id=number)
                         for number in range(1, count + 1) for place, annotation in enumerate(objects)],
            categories=coco['categories'])))


def run(command: str, clone: Path, data: Path, *options: str, out: Path | None = None) -> tuple[float, str]:
    """Runs Python in a clone; returns the processor seconds, and what it prints to stderr."""
    with TemporaryDirectory() as temporary:
        words = [word.format(out=out or temporary, data=data) for word in shlex.split(command)]
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, *options, *words], cwd=clone, capture_output=True, text=True,
                              env={**os.environ, 'PYTHONPATH': str(clone)})
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
    if 'Traceback' in done.stderr or (command in RUNS and done.returncode):
        raise UserError(f'python {command} fails in {clone}: {(done.stderr or done.stdout).splitlines()[-1]}')
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
    with TemporaryDirectory() as folder:
        data, commands = Path(folder), args.commands or [*IMPORTS, *HELP, *RUNS]
        if any('{data}' in command for command in commands):
            write_data(data)
        for command in commands:
            turns = [[run(command, clone, data)[0] for clone in clones] for _ in range(args.rounds)]
            _, report = run(command, ROOT, data, '-X', 'importtime')
            rows.append([f'`python {command}`',
                         *(f'{median(seconds):.2f}' for seconds in zip(*turns, strict=True)),
                         ', '.join(longest_imports(report))])
            print(*rows[-1], file=sys.stderr, flush=True)
    print(markdown_table(('command', *(f's, {clone.name}' for clone in clones), 'longest imports, s'), rows), end='')
