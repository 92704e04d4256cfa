"""Converts CamVid, in the version of the SegNet tutorial, to the layout of mmseg."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')

from lab.commands.camvid import main

if __name__ == '__main__':
    main()
