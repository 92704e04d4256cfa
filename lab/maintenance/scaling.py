"""Computes on paper how many GPUs can train together before sending gradients takes more than 10 % of a step.

A ring all-reduce among N GPUs sends 2 (N - 1) / N times the bytes of the gradients over each link, in 2 (N - 1) steps.
Here nothing overlaps with computing; DDP overlaps, and does better. The time of a step is given, not measured.
"""
import argparse

import torch

from cpvt_mm import create_backbone
from openmmlab_runs.texts import markdown_table

ARCHS = ('nano', 'tiny', 'small', 'base', 'large')
SHARE = 0.1  # of a step
MOST = 1 << 16


def all_reduce_seconds(count: int, size: int, gigabits: float, latency: float) -> float:
    """Returns the time of a ring all-reduce of `size` bytes among `count` GPUs; the latency is in seconds."""
    return 2 * (count - 1) * (size / count / (gigabits * 1e9 / 8) + latency)


def most_gpus(size: int, gigabits: float, latency: float, step: float) -> int:
    """Returns the largest number of GPUs whose all-reduce takes at most `SHARE` of a step of so many seconds."""
    too_many = (count for count in range(2, MOST)  # the time grows with the number
                if all_reduce_seconds(count, size, gigabits, latency) > SHARE * step)
    return next(too_many, MOST) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--step-ms', type=float, default=200, help='time of a step without communication')
    parser.add_argument('--latency-us', type=float, default=10, help='time of a message without content')
    parser.add_argument('--gigabits', type=float, nargs='+', default=[25, 100, 400], help='speeds of links, Gb/s')
    args = parser.parse_args()
    header = ['backbone', 'parameters, M', 'gradients, MB']
    for speed in args.gigabits:
        header += [f'{speed:g} Gb/s: 16 GPUs, ms', 'most GPUs']
    rows = []
    for arch in ARCHS:
        with torch.device('meta'):
            parameters = sum(parameter.numel() for parameter in create_backbone(f'pyramid-cpvt-{arch}').parameters())
        row = [arch, f'{parameters / 1e6:.2f}', f'{parameters * 4 / 1e6:.1f}']
        for speed in args.gigabits:
            link = parameters * 4, speed, args.latency_us / 1e6
            row += [f'{all_reduce_seconds(16, *link) * 1e3:.1f}', most_gpus(*link, args.step_ms / 1e3)]
        rows.append(row)
    print(markdown_table(header, rows))


if __name__ == '__main__':
    main()
