"""Lets mmpretrain, timm and smp be imported where no torchvision can be installed; for tests and benchmarks only.

They import torchvision, but the models that are tested and measured here use nothing of it. PyPI has no torchvision for
CPU builds of torch on Linux.
"""
import importlib.util
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / 'stand_ins'


def stand_in() -> None:
    """Puts the stand-in on the path of this process and of those it starts, unless torchvision is installed."""
    if not importlib.util.find_spec('torchvision'):
        sys.path.append(str(FOLDER))
        os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [os.environ.get('PYTHONPATH'), str(FOLDER)]))
