"""Prints how smooth the learnt position tables of checkpoints are: the correlation of neighbouring cells.

It is 1 for a smooth table, and 0 if each cell differs from its neighbours as from any other cell. Resampling a table to
another size mixes neighbours.
"""
import argparse
from pathlib import Path

from torch import Tensor

from openmmlab_runs.checkpoints.reading import read_weights
from openmmlab_runs.errors import exit_on_error


def neighbour_correlation(table: Tensor) -> float:
    """Returns the mean correlation of vertical and of horizontal neighbours of a table `(H, W, C)`."""
    table = table - table.mean(dim=(0, 1))
    products = (table[1:] * table[:-1]).mean() + (table[:, 1:] * table[:, :-1]).mean()
    return (products / 2 / table.square().mean()).item()


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('checkpoints', nargs='+', type=Path)
    for checkpoint in parser.parse_args().checkpoints:
        for name, table in read_weights(checkpoint).tensors.items():
            if name.endswith('.table'):
                print(f'{checkpoint}: {name} {tuple(table.shape)}: {neighbour_correlation(table):.2f}')


if __name__ == '__main__':
    main()
