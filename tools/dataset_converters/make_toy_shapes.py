"""Writes a toy dataset: textured shapes as COCO instances and as label maps in ADE20K's layout, or moving in videos."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')

from lab.commands.make_toy_shapes import main

if __name__ == '__main__':
    main()
