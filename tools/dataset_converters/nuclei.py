"""Converts the 2018 Data Science Bowl (stage1_train.zip, unpacked) to images with COCO annotations."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')

from lab.commands.nuclei import main

if __name__ == '__main__':
    main()
