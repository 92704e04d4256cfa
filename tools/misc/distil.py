"""Trains a backbone on images without labels: it learns from a larger model."""
import sys
from importlib.util import find_spec

if not find_spec('cpvt_mm'):
    sys.exit(f'error: {sys.executable} has no cpvt_mm: activate the environment that has it (docs/get_started.md).')

from openmmlab_tools.cli import start

if __name__ == '__main__':
    start('cpvt_mm.commands.distil', 'cpvt_mm.public')
