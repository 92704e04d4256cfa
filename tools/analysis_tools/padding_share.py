"""Prints which share of the pixels of training batches is padding, for the image sizes of COCO annotation files."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')

from lab.commands.padding_share import main

if __name__ == '__main__':
    main()
