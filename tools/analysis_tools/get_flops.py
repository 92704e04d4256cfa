"""Prints a markdown table of the parameters and FLOPs of configs, attention included."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')


from lab.commands.get_flops import main

if __name__ == '__main__':
    main()
