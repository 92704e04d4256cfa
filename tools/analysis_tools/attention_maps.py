"""Draws attention maps of backbone blocks; `--help` has the arguments."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')

from lab.commands.attention_maps import main

if __name__ == '__main__':
    main()
