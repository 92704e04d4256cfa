"""Stores what mmcv's compiled operators return for the cases of tests/openmmlab_tools/compat/cases.py.

With --compare, compares the operators of this environment with what is stored, and prints a markdown table.
"""
import argparse
import sys
from collections import defaultdict
from pathlib import Path

import mmcv._ext
import numpy as np

from openmmlab_tools.texts import markdown_table
from tests.openmmlab_tools.compat.cases import CASES, run

ROOT = Path(__file__).parents[2]

STORED = ROOT / 'tests/openmmlab_tools/compat/compiled.npz'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--compare', action='store_true', help='compare instead of storing')
    compare = parser.parse_args().compare
    if not compare and not mmcv._ext.__file__.endswith('.so'):
        sys.exit(f'mmcv._ext is {mmcv._ext.__file__}, but must be compiled: run this in an environment made with '
                 'OPERATORS=compiled.')
    results = {f'{name}/{key}': value.numpy() for name in CASES for key, value in run(name).items()}
    if compare:
        print_table(results)
    else:
        np.savez_compressed(STORED, **results)
        print(f'{len(results)} arrays in {STORED.relative_to(ROOT)}')


def print_table(results: dict[str, np.ndarray]) -> None:
    differences = defaultdict(list)
    with np.load(STORED) as stored:
        for name, array in results.items():
            operator, _, key = name.replace('/', ' ').partition(' ')
            kind = 'gradients' if 'grad' in key else 'values'
            reference = stored[name].astype(float)
            largest = max(np.abs(reference).max(initial=0), 1e-30)
            differences[operator, kind].append(np.abs(array - reference).max(initial=0) / largest)
    print(markdown_table(('operator', 'what', 'arrays', 'equal to the bit', 'largest difference / largest value'), (
        (*key, len(values), sum(d == 0 for d in values), f'{max(values):.1e}') for key, values in differences.items())))
