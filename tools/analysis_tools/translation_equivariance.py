"""Measures translation equivariance: whether the features of a backbone move with a picture on an empty canvas."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')

from lab.commands.translation_equivariance import main

if __name__ == '__main__':
    main()
