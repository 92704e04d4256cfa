"""Tests one checkpoint of a detector or segmentor at several image sizes."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')

from lab.commands.resolution_sweep import main

if __name__ == '__main__':
    main()
