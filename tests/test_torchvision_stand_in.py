"""mmpretrain, whether or not torchvision is there."""
import subprocess
from collections.abc import Callable
from pathlib import Path

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
