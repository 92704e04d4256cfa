"""Makes the toy data, trains and tests a detector and a segmentor on it, and prints their metrics."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')

from lab.commands.demo import main

if __name__ == '__main__':
    main()
