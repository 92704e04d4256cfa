import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT


def files(folder: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob('*')
            if path.is_file() and '__pycache__' not in path.parts}


def test_a_wheel_carries_package_configs_and_tools(tmp_path: Path) -> None:
    source = tmp_path / 'source'
    # `/data` and `/work_dirs` of a clone may be large; cpvt_mm has a folder named data, too.
    left_out = {path.name for pattern in ('.git', '.venv*', 'data', 'work_dirs', 'build', '*.egg-info', 'tests')
                for path in ROOT.glob(pattern)}
    shutil.copytree(ROOT, source, symlinks=True,
                    ignore=lambda folder, _: left_out if Path(folder) == ROOT else {'__pycache__'})
    # By way of the source distribution, as `python -m build` does.
    subprocess.run([sys.executable, 'setup.py', '-q', 'sdist', '-d', tmp_path], cwd=source, check=True, timeout=300)
    [sdist] = tmp_path.glob('*.tar.gz')
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation', '-w', tmp_path,
                    sdist], check=True, timeout=300)
    [wheel] = tmp_path.glob('*.whl')
    names = {name for name in zipfile.ZipFile(wheel).namelist() if '.dist-info/' not in name}
    package = {name for name in files('cpvt_mm') | files('openmmlab_compat') if '/.mim/' not in name}
    carried = {f'cpvt_mm/.mim/{name}' for name in files('configs') | files('tools') | {'model-index.yml'}}
    assert names == package | carried | {'openmmlab_compat.pth'}
    # An installed tool finds the modules beside it from any folder.
    installed = tmp_path / 'installed'
    zipfile.ZipFile(wheel).extractall(installed)
    subprocess.run([sys.executable, installed / 'cpvt_mm/.mim/tools/analysis_tools/benchmark.py', '--help'], check=True,
                   cwd=tmp_path, env={**os.environ, 'PYTHONPATH': str(installed)}, timeout=300)


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path: Path) -> None:
    (tmp_path / 'cpvt_mm').mkdir()  # as in the folder that holds a clone
    code = 'import cpvt_mm; cpvt_mm.create_backbone'
    subprocess.run([sys.executable, '-c', code], cwd=tmp_path, check=True, timeout=300)


def test_the_source_tree_has_configs_and_tools_under_mim() -> None:
    for name in ('configs', 'tools', 'model-index.yml'):
        assert (ROOT / 'cpvt_mm/.mim' / name).resolve() == ROOT / name


def test_the_model_index_lists_every_config() -> None:
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    listed = [model['Config'] for path in index['Import']
              for model in yaml.safe_load((ROOT / path).read_text())['Models']]
    folders = {str(Path(path).parent) for path in index['Import']}
    published = {f'configs/{path.name}' for path in (ROOT / 'configs').iterdir()} - {'configs/_base_', 'configs/toy'}
    assert folders == published
    readmes = {f'{folder}/README.md' for folder in folders}
    assert sorted(listed) == sorted(set().union(*map(files, folders)) - set(index['Import']) - readmes)


def test_the_metafiles_point_to_files_that_are_there() -> None:
    for metafile in (ROOT / 'configs').glob('*/metafile.yml'):
        content = yaml.safe_load(metafile.read_text())
        for part in (*content.get('Collections', ()), *content['Models']):
            for path in filter(None, (part.get('README'), part.get('Code', {}).get('URL'))):
                assert (ROOT / path).is_file(), f'{metafile}: {path}'


@pytest.mark.parametrize('folder', sorted(path.parent.name for path in ROOT.glob('configs/*/README.md')))
def test_the_readme_of_a_folder_links_every_config(folder: str) -> None:
    path = ROOT / 'configs' / folder
    links = re.findall(r'\((\S+\.py)\)', (path / 'README.md').read_text())
    assert sorted(links) == sorted(config.name for config in path.glob('*.py'))
