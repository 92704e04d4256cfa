"""Trains the variants of a study, each with several seeds, and tests them."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')

from lab.commands.compare import main

if __name__ == '__main__':
    main()
