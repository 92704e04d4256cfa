"""The package as it is installed and imported: with its parts, without some of them, and from configs of others."""
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest import mock

import mmdet
import pytest
import yaml

import openmmlab_tools.compat
from lab.commands import house
from openmmlab_tools.libraries import require
from tests.helpers import ROOT, refusal

# What the package imports of mmcv and mmengine may change settings, and modules of torch add to the classes.
STATE = '''
import logging, os, sys, warnings
import numpy, torch, mmcv
import mmengine.config, mmengine.hub, mmengine.model, mmengine.runner, mmengine.visualization
def state():
    loggers = [logging.root, *(logging.getLogger(name) for name in sorted(logging.root.manager.loggerDict))]
    return dict(
        safe=[one for one in torch.serialization.get_safe_globals() if not str(one).startswith("<class 'torch.")],
        environment=dict(os.environ), warnings=warnings.filters[:],
        levels={logger.name: logger.level for logger in loggers if logger.level},
        numpy=[id(getattr(numpy, name)) for name in numpy.__all__], path=sys.path[:],
        dtype=torch.get_default_dtype(), threads=torch.get_num_threads())
before = state()
import cpvt_mm, cpvt_mm.models.create, openmmlab_tools.checkpoints.reading
after = state()
print([name for name in before if before[name] != after[name]])
'''
ONE_LINE = '''
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
init_default_scope('mmdet')
for kind, imports in (('cpvt_mm.PyramidCPVT', []), ('PyramidCPVT', ['cpvt_mm'])):
    open('config.py', 'w').write(f"""
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
model = dict(backbone=dict(_delete_=True, type='{kind}', arch='nano'), neck=dict(in_channels=[32, 64, 128, 192]))
custom_imports = dict(imports={imports})""")
    model = MODELS.build(Config.fromfile('config.py').model)
    print(type(model).__name__, type(model.backbone).__module__, *model.backbone.out_channels)
'''
WITHOUT_PARTS = '''
import sys
hidden = ['mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'timm', 'torchvision', 'cv2', 'pycocotools']
sys.modules.update(dict.fromkeys(hidden))
import torch, cpvt_mm
from mmengine.registry import MODELS
model = MODELS.build(dict(type='cpvt_mm.PyramidCPVT', arch='nano'))
print([tuple(out.shape) for out in model(torch.zeros(1, 3, 33, 65))])
MODELS.build(dict(type='cpvt_mm.DetDataPreprocessor'))
'''
VERSION = "import mmcv; mmcv.__version__ = '9.0'; from openmmlab_tools.libraries import require; require('mmdet')"


@pytest.mark.slow
@pytest.mark.parametrize('code, printed, told', [
    # Importing changes only registries and the finder of openmmlab_tools.compat.
    (STATE, ['[]'], []), (ONE_LINE, ['MaskRCNN cpvt_mm.models.pyramid_cpvt 32 64 128 192'] * 2, []),
    (WITHOUT_PARTS, ['[(1, 32, 9, 17), (1, 64, 5, 9), (1, 128, 3, 5), (1, 192, 2, 3)]'],
     ['ImportError: mmdet cannot be imported (', 'install one stack']),
    pytest.param(VERSION, [], ['ImportError: mmdet cannot be imported (', '9.0'], marks=pytest.mark.skipif(
        not hasattr(mmdet, 'mmcv_minimum_version'), reason='the forks ask for no version'))])
def test_a_new_interpreter_without_asserts_beside_a_folder_of_the_same_name(
        code: str, printed: list[str], told: list[str], tmp_path: Path) -> None:
    (tmp_path / 'cpvt_mm').mkdir()  # as in the folder that holds a clone
    done = subprocess.run([sys.executable, '-O', '-c', code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()  # mmpretrain prints what it does not find
    assert lines[len(lines) - len(printed):] == printed, done.stderr
    assert done.returncode == bool(told) and all(word in done.stderr.splitlines()[-1] for word in told), done.stderr


@pytest.mark.parametrize('module, error, advice', [
    # What transformers 5 makes of mmpretrain.
    ('mmpretrain', TypeError('NoneType takes no arguments'), "'transformers<5'"),
    ('mmdet', OSError('libtorch.so: undefined symbol'), "install one stack, in the clone pip install -e '.")])
def test_a_mismatched_part_gives_its_reason_and_what_to_install(module: str, error: Exception, advice: str) -> None:
    with mock.patch('importlib.import_module', side_effect=error):
        message = refusal(require, module, error=ImportError)
    assert message.startswith(f'{module} cannot be imported ({error}): ') and advice in message


def files(folder: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob('*')
            if path.is_file() and '__pycache__' not in path.parts}


@pytest.mark.slow
def test_a_wheel_carries_packages_configs_and_tools_but_not_lab(tmp_path: Path) -> None:
    source = tmp_path / 'source'
    # `/data` and `/work_dirs` of a clone may be large; packages have folders named data, too.
    left_out = {path.name for pattern in ('.git', '.venv*', 'data', 'work_dirs', 'build', '*.egg-info', 'tests')
                for path in ROOT.glob(pattern)}
    left_out |= {path.name for path in ROOT.iterdir() if path in tmp_path.parents}  # where `--basetemp` is in the clone
    shutil.copytree(ROOT, source, symlinks=True,
                    ignore=lambda folder, _: left_out if Path(folder) == ROOT else {'__pycache__'})
    # By way of the source distribution, as `python -m build` does.
    subprocess.run([sys.executable, 'setup.py', '-q', 'sdist', '-d', tmp_path], cwd=source, check=True, timeout=300)
    [sdist] = tmp_path.glob('*.tar.gz')
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation', '-w', tmp_path,
                    sdist], check=True, timeout=300)
    [wheel] = tmp_path.glob('*.whl')
    names = {name for name in zipfile.ZipFile(wheel).namelist() if '.dist-info/' not in name}
    packages = {name for name in set().union(*map(files, house.PACKAGES[:2])) if not name.endswith(('.pth', '.start'))}
    tools = {name for name in files('tools') if 'lab.commands' not in (ROOT / name).read_text()}
    tools.remove('tools/misc/setup_env.sh')
    carried = {f'cpvt_mm/.mim/{name}' for name in files('configs') | tools | {'model-index.yml'}}
    starts = {'openmmlab_tools.pth', 'openmmlab_tools.start'}
    assert names == {x for x in packages if '/.mim/' not in x} | carried | starts
    for name in ('configs', 'tools', 'model-index.yml'):  # as in the source tree
        assert (ROOT / 'cpvt_mm/.mim' / name).resolve() == ROOT / name
    installed = tmp_path / 'installed'
    zipfile.ZipFile(wheel).extractall(installed)
    subprocess.run([sys.executable, installed / 'cpvt_mm/.mim/tools/train.py', '--help'], check=True, cwd=tmp_path,
                   env={**os.environ, 'PYTHONPATH': str(installed)}, timeout=300, stdout=subprocess.DEVNULL)


def test_python_starts_what_mmcv_misses_by_a_line_for_each_version() -> None:
    by_pth, by_start = ((ROOT / f'openmmlab_tools/compat/openmmlab_tools.{suffix}').read_text()
                        for suffix in ('pth', 'start'))
    assert by_pth == 'import openmmlab_tools.compat; openmmlab_tools.compat.install()\n'
    assert pkgutil.resolve_name(by_start.removesuffix('\n')) is openmmlab_tools.compat.install  # as Python 3.15 does


# Modules whose distribution has another name, and those that a declared one brings.
DISTRIBUTIONS = {'PIL': 'pillow', 'mmseg': 'mmsegmentation', 'mmpretrain': 'onedl-mmpretrain', 'mmcv': 'mmcv-lite',
                 'cv2': 'mmengine', 'yaml': 'mmengine', 'cycler': 'matplotlib'}


@pytest.mark.parametrize('package', house.PACKAGES[:2])
def test_what_is_imported_is_declared(package: str) -> None:
    tomllib = pytest.importorskip('tomllib')  # from Python 3.11 on
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    lines = sum(project['optional-dependencies'].values(), project['dependencies'])
    declared = {re.match(r'[\w-]+', line)[0].lower().replace('_', '-') for line in lines}
    names = set().union(*map(house.imports, house.python_files(package)))
    modules = {name.split('.')[0] for name in names} - sys.stdlib_module_names - set(house.PACKAGES)
    names = {DISTRIBUTIONS.get(module, module.replace('_', '-')) for module in modules}
    assert len(names) > 2 and names - declared == set()


def test_the_model_index_lists_every_config_and_points_to_files_that_are_there() -> None:
    metafiles = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
    contents = [yaml.safe_load((ROOT / path).read_text()) for path in metafiles]
    listed = [model['Config'] for content in contents for model in content['Models']]
    folders = {str(Path(path).parent) for path in metafiles}
    published = {f'configs/{path.name}' for path in (ROOT / 'configs').iterdir()} - {'configs/_base_', 'configs/toy'}
    assert folders == published
    readmes = {f'{folder}/README.md' for folder in folders}
    assert sorted(listed) == sorted(set().union(*map(files, folders)) - set(metafiles) - readmes)
    for part in [part for content in contents for part in (*content.get('Collections', ()), *content['Models'])]:
        for path in filter(None, (part.get('README'), part.get('Code', {}).get('URL'))):
            assert (ROOT / path).is_file(), path


def test_actions_of_others_are_pinned_by_hash() -> None:
    used = [action for path in (ROOT / '.github/workflows').iterdir()
            for action in re.findall(r'uses: (.+)', path.read_text())]
    assert used and all(re.match(r'[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d', action) for action in used)
