"""Injects faults into short trainings of two processes on this machine, and prints what became of each.

Each training has 8 iterations on toy data, a checkpoint every two, and one fault at a random moment. Whatever ends is
started again by the same command, as Slurm and Kubernetes do. It exits with 1 if a training did not end, or ended with
other weights.
"""
import argparse
import os
import random
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch.utils._pytree import tree_flatten

from lab.commands.toy_shapes import write_toy_shapes
from lab.restarted_training import Training, descendants, send
from openmmlab_tools.texts import markdown_table

ROOT = Path(__file__).parents[2]
BASE = ROOT / 'configs/toy/upernet_pyramid-cpvt-nano_toy-shapes.py'
ITERATIONS = 8
SECONDS = 240  # that a training may take, with its restarts
HANGS = 30  # seconds that ranks wait for each other
CONFIG = f'''
_base_ = {str(BASE)!r}
custom_imports = dict(imports=['lab.commands.faults'])
custom_hooks = [dict(type='FaultsHook')]
log_level = 'WARNING'
randomness = dict(seed=0)
train_cfg = dict(max_iters={ITERATIONS}, val_interval=100)
train_dataloader = dict(batch_size=2, num_workers=1, dataset=dict(data_root='data/'))
val_dataloader = dict(dataset=dict(data_root='data/'))
model = dict(backbone=dict(drop_path_rate=0.3))
default_hooks = dict(checkpoint=dict(interval=2, max_keep_ckpts=1))
env_cfg = dict(dist_cfg=dict(timeout={HANGS}))
'''
# Each name with the number of nodes; a node is a torchrun with one rank of two, or with both.
KINDS = {'rank 0 killed': '1', 'rank 1 killed': '1', 'rank 0 killed as it writes a checkpoint': '1',
         'worker of a data loader killed': '1', 'rank 1 hangs (SIGSTOP)': '1', 'SIGTERM to torchrun': '1',
         'SIGUSR1 to torchrun': '1', 'SIGUSR1 to both ranks': '1', 'machine dies (all killed)': '1',
         'second node dies and comes back': '2', 'second node leaves for good': '1:2', 'second node joins late': '1:2'}
STEP, PAUSE = 'FAULTS_STEP', 'FAULTS_PAUSE'


@dataclass
class Result:
    """The end of a training with a fault.

    Attributes:
        equal: Whether weights and optimizer are bitwise equal to a run without the fault; None if the number of ranks
            differs.
    """
    kind: str
    survived: bool
    repeated: int
    starts: int
    equal: bool | None


@HOOKS.register_module()
class FaultsHook(Hook):
    """Notes each iteration and the process that has trained it, and may kill this process as it writes a checkpoint."""

    def note(self, runner: Runner, done: int) -> None:
        with open(f'{runner.work_dir}.progress', 'a') as file:
            print(get_rank(), os.getpid(), done, file=file)

    def before_train(self, runner: Runner) -> None:
        self.note(runner, -1)
        mark = Path(f'{runner.work_dir}.fault')
        if get_rank() == 0 and STEP in os.environ and not mark.exists():
            die_at_step(int(os.environ[STEP]), mark)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.note(runner, runner.iter)
        time.sleep(float(os.environ.get(PAUSE, 0)))


def die_at_step(number: int, mark: Path) -> None:
    """Kills this process when it opens, renames or removes a checkpoint or the note of the last one."""
    steps = iter(range(number + 1))

    def hook(event: str, args: tuple) -> None:
        is_step = event in ('os.rename', 'os.remove') or (event == 'open' and (args[2] or 0) & os.O_WRONLY)
        if is_step and re.search(r'\.pth|last_checkpoint', str(args[0])) and next(steps, None) == number:
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def inject(training: Training, kind: str, rng: random.Random) -> bool:
    """Waits for a random moment and injects a fault; returns False if the training has ended before."""
    if kind == 'rank 0 killed as it writes a checkpoint':
        while not Path(f'{training.work_dir}.fault').exists():
            if any(agent.poll() is not None for agent in training.agents.values()):
                return False
            time.sleep(0.05)
        return True
    if not training.wait_for(rng.randrange(-1, ITERATIONS - 2)):
        return False
    time.sleep(rng.uniform(0, 0.3))
    agent = training.agents[0].pid
    match kind:
        case 'rank 0 killed' | 'rank 1 killed':
            return send(training.rank(int(kind[5])), signal.SIGKILL)
        case 'worker of a data loader killed':
            training.wait_for(0)  # then there are workers
            return send(list(descendants(training.rank(rng.randrange(2))))[-1], signal.SIGKILL)
        case 'rank 1 hangs (SIGSTOP)':
            return send(training.rank(1), signal.SIGSTOP)
        case 'SIGTERM to torchrun' | 'SIGUSR1 to torchrun':
            return send(agent, signal.Signals[kind.split()[0]])
        case 'SIGUSR1 to both ranks':
            return all([send(training.rank(number), signal.SIGUSR1) for number in range(2)])
        case 'machine dies (all killed)':
            training.kill(0)
            training.start(0)
        case 'second node dies and comes back':
            training.kill(1)
            training.start(1)
        case 'second node leaves for good':
            training.kill(1)
        case 'second node joins late':
            training.start(1)
    return True


def same(first: Any, second: Any) -> bool:
    ours, others = tree_flatten(first), tree_flatten(second)
    return ours[1] == others[1] and all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
                                        for a, b in zip(ours[0], others[0], strict=True))


def one_fault(folder: Path, config: Path, kind: str, rng: random.Random) -> Result | None:
    """Trains with one fault; returns None if it came too late."""
    env = {STEP: str(rng.randrange(16))} if 'writes' in kind else {}
    if 'joins' in kind:  # a node takes seconds to start
        env[PAUSE] = '2'
    training = Training(folder / str(time.time_ns()), config, KINDS[kind], env)
    begin = time.monotonic()
    try:
        training.start(0)
        if KINDS[kind] != '1' and 'joins' not in kind:
            training.start(1)
        if not inject(training, kind, rng):
            return None
        survived = training.end(begin + SECONDS)
    finally:
        training.clean()
    trained = [count for rank, _, count in training.lines() if rank == 0 and count >= 0]
    equal = None
    if survived and KINDS[kind] != '1:2':
        ours, whole = (torch.load(trained_in / f'iter_{ITERATIONS}.pth', weights_only=True)
                       for trained_in in (training.work_dir, folder / 'whole'))
        equal = all(same(ours[part], whole[part]) for part in ('state_dict', 'optimizer'))
    return Result(kind, survived, len(trained) - len(set(trained)), training.starts, equal)


def table(results: list[Result]) -> str:
    rows = []
    for kind in [*KINDS, 'all']:
        of_kind = [result for result in results if kind in (result.kind, 'all')]
        if of_kind:
            repeated = [result.repeated for result in of_kind]
            compared = [result.equal for result in of_kind if result.equal is not None]
            rows.append((kind, len(of_kind), sum(result.survived for result in of_kind),
                         f'{sum(repeated) / len(of_kind):.1f} ({max(repeated)})',
                         f'{sum(compared)} of {len(compared)}' if compared else 'other number of ranks'))
    return markdown_table(('fault', 'injected', 'survived', 'iterations repeated, mean (most)', 'the same to the bit'),
                          rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--count', type=int, default=54, help='number of faults')
    parser.add_argument('--kinds', nargs='+', choices=KINDS, default=[*KINDS], metavar='KIND', help='default: all')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/faults'))
    args = parser.parse_args()
    folder = args.work_dir.resolve()
    data = folder / 'data'
    if not data.exists():
        list(write_toy_shapes(data, num_train=32, num_val=4))
    config = folder / 'config.py'
    config.write_text(CONFIG.replace("'data/'", repr(f'{data}/')))
    whole = Training(folder / 'whole', config, '1')
    whole.start(0)
    try:
        if not whole.end(time.monotonic() + SECONDS):
            sys.exit(f'The training without fault fails: see {folder}/whole.0.log.')
    finally:
        whole.clean()
    results: list[Result] = []
    for number in range(args.count):
        kind, rng = args.kinds[number % len(args.kinds)], random.Random(f'{args.seed} {number}')
        while not (result := one_fault(folder, config, kind, rng)):  # it came too late: another moment
            pass
        results.append(result)
        print(f'[{number + 1}/{args.count}] {result}', flush=True)
    print(table(results))
    if not all(result.survived and result.equal is not False for result in results):
        sys.exit(1)
