"""mmpretrain and timm, whether or not torchvision is there."""
import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_stack import HIDE

Run = Callable[[str], subprocess.CompletedProcess]
REQUIRE = """
import sys
from cpvt_mm.stack import require
require('mmpretrain')
from mmpretrain.datasets.transforms import processing
"""
# What mmpretrain names at import.
TORCHVISION = {
    '__init__.py': '',
    'ops/__init__.py': '',
    'ops/boxes.py': '',
    'transforms/__init__.py': 'class RandomResizedCrop: pass',
    'transforms/functional.py': '',
    'transforms/transforms.py': 'InterpolationMode = None',
}


def write_torchvision(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / 'torchvision' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_without_torchvision_only_what_needs_it_fails(run_python: Run) -> None:
    # mmdet tries mmpretrain, and goes on with the half of it that it gets.
    done = run_python(HIDE.format(names=['torchvision']) + 'import mmdet.models' + REQUIRE + """
assert not any(name.split('.')[0] == 'torchvision' for name in sys.modules)
for transform, options in dict(CenterCrop=dict(crop_size=2), MAERandomResizedCrop=dict(size=2),
                               **{'torchvision/RandomResizedCrop': dict(size=2)}).items():
    try:
        processing.TRANSFORMS.build(dict(type=transform, **options))
        print('built')
    except ImportError as error:
        print(error)
""")
    built, *missing = done.stdout.splitlines()
    assert built == 'built', done.stderr
    assert len(missing) == 2
    assert all('needs torchvision, which is not installed' in line for line in missing)


def test_a_torchvision_that_is_there_is_used(run_python: Run, tmp_path: Path) -> None:
    write_torchvision(tmp_path / 'empty', TORCHVISION)
    done = run_python(REQUIRE + 'print(processing.torchvision.__file__, sys.modules["torchvision"].__file__)')
    assert done.stdout.split() == 2 * [str(tmp_path / 'empty/torchvision/__init__.py')], done.stderr


def test_a_torchvision_made_for_another_torch_is_named(run_python: Run, tmp_path: Path) -> None:
    broken = {'__init__.py': "raise RuntimeError('operator torchvision::nms does not exist')"}
    write_torchvision(tmp_path / 'empty', broken)
    last = run_python(REQUIRE).stderr.splitlines()[-1]
    assert last.startswith('ImportError: cpvt_mm needs mmpretrain')
    assert 'operator torchvision::nms does not exist' in last
    assert 'the torchvision that goes with your torch' in last


# What timm does with torchvision at import.
TIMM = """
import torchvision.transforms as transforms
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.ops.misc import FrozenBatchNorm2d
from torchvision.transforms.functional import InterpolationMode
names = {InterpolationMode.NEAREST: 'nearest', InterpolationMode.BICUBIC: 'bicubic'}
assert len(names) == 2
class MaybeToTensor(transforms.ToTensor): pass
"""
IMPORT_TIMM = """
import sys
from cpvt_mm.torchvision_stand_in import import_timm
import_timm()
assert not any(name.split('.')[0] == 'torchvision' for name in sys.modules)
import timm
"""


def test_timm_does_without_torchvision(run_python: Run, tmp_path: Path) -> None:
    (tmp_path / 'empty/timm.py').write_text(TIMM)
    done = run_python(HIDE.format(names=['torchvision']) + IMPORT_TIMM + """
for missing in (timm.MaybeToTensor, timm.FrozenBatchNorm2d):
    assert not isinstance(3, missing)
    try:
        missing(3)
    except ImportError as error:
        print(error)
""")
    assert [line.split(',')[0] for line in done.stdout.splitlines()] == [
        'MaybeToTensor needs torchvision', 'FrozenBatchNorm2d needs torchvision'], done.stderr


@pytest.mark.skipif(not importlib.util.find_spec('timm'), reason='timm is not installed')
def test_the_installed_timm_does_without_torchvision(run_python: Run) -> None:
    done = run_python(HIDE.format(names=['torchvision']) + IMPORT_TIMM + """
import torch
print(timm.create_model('resnet18')(torch.zeros(1, 3, 64, 64)).shape)
""")
    assert done.stdout.strip() == 'torch.Size([1, 1000])', done.stderr


def test_without_timm_the_import_says_so(run_python: Run) -> None:
    done = run_python(HIDE.format(names=['torchvision', 'timm']) + IMPORT_TIMM)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'timm'"
