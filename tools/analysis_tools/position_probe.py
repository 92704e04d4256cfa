"""Measures how much of row and column a ridge regression reads from the features of backbones, by layer and size."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')

from lab.commands.position_probe import main

if __name__ == '__main__':
    main()
