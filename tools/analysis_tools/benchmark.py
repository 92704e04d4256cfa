"""Times forward passes and training steps of PyramidCPVT and of other backbones, and measures their peak memory."""
import sys
from importlib.util import find_spec

if not find_spec('lab'):
    sys.exit(f'error: {sys.executable} has no lab: activate an environment made in a clone (docs/get_started.md).')


from lab.commands.benchmark import main

if __name__ == '__main__':
    main()
