"""Trains the variants of a study, each with several seeds, and tests them.

Writes results.csv, results.md and results.png with all requested variants and seeds to the work dir. Run it again to
continue after an interruption, or to add seeds.
"""
import argparse
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rich.progress import track

from lab.arguments import check_least
from lab.clusters import run_on_cluster
from lab.study import Run, read_study
from lab.study_report import write_comparison
from lab.work import run_in_processes
from openmmlab_runs.cli import add_cfg_options, resumable
from openmmlab_runs.errors import UserError, exit_on_error
from openmmlab_runs.files import held


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('study', type=Path, help='config file that sets variants and metrics, such as those in '
                        'configs/_base_/studies; docs/guides/comparing.md describes its settings')
    parser.add_argument('--only', nargs='+', metavar='NAME', help='names of the variants to use; all if not given')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1], help='each variant is trained once per seed')
    parser.add_argument('--jobs', type=int, default=2, help='trainings at a time, which share the cores of a machine')
    parser.add_argument('--executor', choices=['local', 'slurm', 'ray'], default='local',
                        help='where they run: processes of this machine, jobs of Slurm (submitit), or tasks of Ray')
    parser.add_argument('--work-dir', type=Path,
                        help='folder of the results; work_dirs/<name of the study> if not given')
    add_cfg_options(parser)
    return parser.parse_args()


@exit_on_error
@resumable
def main() -> None:
    args = parse_args()
    check_least(args, 1, 'jobs')
    study = read_study(args.study)
    folder = args.work_dir or Path('work_dirs') / args.study.stem
    for name in args.only or ():
        if name not in study.variants:
            raise UserError(f'{name!r} is not a variant of {args.study}: choose from {", ".join(study.variants)}.')
    # One seed of all variants before the next seed, so that partial results can be compared.
    runs = [Run(name, study.variants[name], seed, folder, args.cfg_options)
            for seed in dict.fromkeys(args.seeds) for name in dict.fromkeys(args.only or study.variants)]

    def report() -> str:
        rows = [row for run in runs for row in run.rows(study.tests)]
        return write_comparison(folder, rows, study.metrics, args.study.stem)

    with held(folder):
        for run in runs:
            run.claim_folder(study.tests)
        tasks = {str(run): partial(run.complete, study.tests) for run in runs if not run.rows(study.tests)}
        if args.executor == 'local':
            # Each process gets its share of the cores, because threads that compete for cores wait for each other.
            os.environ.setdefault('OMP_NUM_THREADS', str(max((os.cpu_count() or 1) // args.jobs, 1)))
            done: Iterable[object] = run_in_processes('Training', tasks, args.jobs)
        else:
            done = track(run_on_cluster(tasks, args.jobs, args.executor, folder / 'jobs'), 'Training', len(tasks))
        for _ in done:
            report()
        print(report())
    print(f'Also in {folder}: results.csv, results.md, results.png')
