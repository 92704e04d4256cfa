"""Makes mmpretrain, timm and smp importable if torchvision cannot be installed; for tests and benchmarks only.

They import torchvision, but the tested and measured models do not use it. PyPI has no torchvision for CPU builds of
torch on Linux.
"""
import importlib.util
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / 'stand_ins'


def stand_in() -> None:
    """Adds the stand-in to the path of this process and its child processes, unless torchvision is installed."""
    if not importlib.util.find_spec('torchvision'):
        sys.path.append(str(FOLDER))
        os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [os.environ.get('PYTHONPATH'), str(FOLDER)]))
