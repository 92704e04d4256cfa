"""Measures how much the features of an image change if it is in a padded batch with a larger image."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')

from lab.commands.padding_difference import main

if __name__ == '__main__':
    main()
