"""The stand-in that tests and benchmarks use where no torchvision can be installed."""
import importlib.util
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT

Run = Callable[[str], subprocess.CompletedProcess]
TOOL = ROOT / 'tools/misc/torchvision_stand_in.py'
# timm's imports and uses of torchvision at import.
TIMM = """
import torchvision.transforms as transforms
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.ops.misc import FrozenBatchNorm2d
from torchvision.transforms.functional import InterpolationMode
names = {InterpolationMode.NEAREST: 'nearest', InterpolationMode.BICUBIC: 'bicubic'}
assert len(names) == 2
class MaybeToTensor(transforms.ToTensor): pass
"""


def test_nothing_in_it_can_be_used(run_python: Run, tmp_path: Path) -> None:
    (tmp_path / 'empty/timm.py').write_text(TIMM)
    done = run_python(f"""
import sys
sys.path.insert(0, {str(TOOL.parent / 'stand_ins')!r})
import timm
for missing in (timm.MaybeToTensor, timm.FrozenBatchNorm2d):
    assert not isinstance(3, missing)
    try:
        missing(3)
    except ImportError as error:
        print(error)
try:
    from torchvision.ops import nms
except ImportError as error:
    print(error)
""")
    assert [line.split(',')[0] for line in done.stdout.splitlines()] == [
        'MaybeToTensor needs torchvision', 'FrozenBatchNorm2d needs torchvision',
        'torchvision.ops.nms needs torchvision'], done.stderr


def test_an_installed_torchvision_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'torchvision.py').touch()
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.path), os.environ.get('PYTHONPATH')
    runpy.run_path(str(TOOL))['stand_in']()
    assert (sys.path, os.environ.get('PYTHONPATH')) == before


@pytest.mark.slow
@pytest.mark.parametrize('library', [
    'mmpretrain.models',
    pytest.param('timm', marks=pytest.mark.skipif(not importlib.util.find_spec('timm'), reason='timm is missing'))])
def test_processes_that_are_started_import_the_libraries(run_python: Run, library: str) -> None:
    done = run_python(f'import {library}')
    assert done.returncode == 0, done.stderr
