import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

from tests.conftest import ROOT


def files(folder: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob('*')
            if path.is_file() and '__pycache__' not in path.parts}


def test_a_wheel_carries_package_configs_and_tools(tmp_path: Path) -> None:
    source = tmp_path / 'source'
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(
        '.*', 'data', 'work_dirs', 'build', '*.egg-info', '__pycache__', 'tests'))
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation', '-w', tmp_path,
                    source], check=True, timeout=300)
    [wheel] = tmp_path.glob('*.whl')
    names = {name for name in zipfile.ZipFile(wheel).namelist() if '.dist-info/' not in name}
    package = {name for name in files('cpvt_mm') if '/.mim/' not in name}
    carried = {f'cpvt_mm/.mim/{name}' for name in files('configs') | files('tools') | {'model-index.yml'}}
    assert names == package | carried


def test_an_editable_install_finds_configs_and_tools_under_mim() -> None:
    for name in ('configs', 'tools', 'model-index.yml'):
        assert (ROOT / 'cpvt_mm/.mim' / name).resolve() == ROOT / name


def test_the_model_index_lists_every_config() -> None:
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    listed = [model['Config'] for path in index['Import']
              for model in yaml.safe_load((ROOT / path).read_text())['Models']]
    assert sorted(listed) == sorted(files('configs/pyramid_cpvt') - set(index['Import']))
