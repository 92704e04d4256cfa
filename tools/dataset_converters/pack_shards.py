"""Packs a folder of data into tar files, which configs read as data_root='tar://::FILES/'."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')

from lab.commands.pack_shards import main

if __name__ == '__main__':
    main()
