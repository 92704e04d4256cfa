"""An environment without a stack, or with a mismatched one, is told in one sentence."""
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cpvt_mm.stack import INSTALL_MMPRETRAIN, require
from tests.conftest import ROOT

Run = Callable[[str], subprocess.CompletedProcess]
HIDE = '''
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
'''
ADVICE = "install one stack, in the clone pip install -e '.[openmmlab]' or '.[onedl]'"


def test_the_backbone_needs_torch_and_mmengine_only(run_python: Run) -> None:
    hidden = ['mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'timm', 'torchvision', 'cv2', 'pycocotools']
    done = run_python(HIDE.format(names=hidden) + '''
import torch, cpvt_mm
from mmengine.registry import MODELS
model = MODELS.build(dict(type='cpvt_mm.PyramidCPVT', arch='nano'))
print([tuple(out.shape) for out in model(torch.zeros(1, 3, 33, 65))])
''')
    assert done.stdout.strip() == '[(1, 32, 9, 17), (1, 64, 5, 9), (1, 128, 3, 5), (1, 192, 2, 3)]', done.stderr


@pytest.mark.parametrize('hidden, code', [
    ('mmengine', 'import cpvt_mm'),
    pytest.param('mmcv', 'import cpvt_mm.engine', marks=pytest.mark.slow),
    pytest.param('cv2', f'sys.path.insert(0, {str(ROOT / "tools/dataset_converters")!r}); import toy_shapes',
                 marks=pytest.mark.slow),
])
def test_a_missing_part_is_named_in_one_line(run_python: Run, hidden: str, code: str) -> None:
    done = run_python(HIDE.format(names=[hidden]) + code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f'ImportError: cpvt_mm needs {hidden}')
    assert ADVICE in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize('code', [
    'import cpvt_mm.models.distillation',
    "from mmengine.registry import MODELS; MODELS.build(dict(type='cpvt_mm.DistilledClassifier'))",
])
def test_what_needs_mmpretrain_says_so_when_it_is_used(run_python: Run, code: str) -> None:
    last = run_python(HIDE.format(names=['mmpretrain']) + f'import cpvt_mm\n{code}').stderr.splitlines()[-1]
    assert last.startswith('ImportError: cpvt_mm needs mmpretrain, which cannot be imported (No module named')
    assert 'pip install mmpretrain' in last and ADVICE not in last


@pytest.mark.slow
@pytest.mark.parametrize('torchvision, reason', [
    ('raise ModuleNotFoundError("No module named \'torchvision\'")', "No module named 'torchvision'"),
    ("raise RuntimeError('operator torchvision::nms does not exist')", 'operator torchvision::nms does not exist'),
], ids=['missing', 'made for another torch'])
def test_mmpretrain_needs_the_torchvision_of_the_installed_torch(run_python: Run, tmp_path: Path, torchvision: str,
                                                                 reason: str) -> None:
    (tmp_path / 'empty/torchvision.py').write_text(torchvision)
    # mmdet tries to import mmpretrain, and goes on without it.
    done = run_python("from cpvt_mm.stack import require; require('mmdet', 'mmpretrain')")
    assert done.stderr.splitlines()[-1] == (
        f'ImportError: cpvt_mm needs mmpretrain, which cannot be imported ({reason}): {INSTALL_MMPRETRAIN}.')


@pytest.mark.parametrize('module, error, advice', [
    # What transformers 5 makes of mmpretrain.
    ('mmpretrain', TypeError('NoneType takes no arguments'), 'version 4.49, not 4.57 or 5'),
    ('mmdet', AssertionError('MMCV==1.7 is used but incompatible. Please install mmcv>=2.0.'), ADVICE),
    ('mmdet', OSError('libtorch.so: undefined symbol'), ADVICE),
    ('mmdet', ModuleNotFoundError("No module named 'mmcv._ext'"), ADVICE),
])
def test_a_mismatched_part_gives_its_reason_and_what_to_install(module: str, error: Exception, advice: str,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr('importlib.import_module', fail)
    with pytest.raises(ImportError) as caught:
        require(module)
    message = str(caught.value)
    assert all(part in message for part in (module, f'({error}): ', advice)) and '\n' not in message
