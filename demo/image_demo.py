"""Paints predictions of a detector or segmentor on an image, or on all images of a folder, and writes them."""
import sys
from importlib.util import find_spec

if not find_spec('cpvt_mm'):
    sys.exit(f'error: {sys.executable} has no cpvt_mm: activate the environment that has it (docs/get_started.md).')

from openmmlab_tools.cli import start

if __name__ == '__main__':
    start('openmmlab_tools.commands.predict', 'cpvt_mm.public')
