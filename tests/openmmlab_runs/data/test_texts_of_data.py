"""Names in data are names: no config that is written of them runs code, makes a file, or reads a variable."""
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmengine.config import Config

from cpvt_mm.new_config import new_config
from openmmlab_runs.errors import UserError
from tests.conftest import ROOT
from tests.odd_texts import file_names, is_half, names
from tests.tools.conftest import save

PIXELS = np.zeros((40, 48, 3), np.uint8)
CODE = '__import__("pathlib").Path("made").touch()'
# The variable closes the string in which the template stands. So does the default of a template, which is a pattern and
# a replacement of re.sub(): its parentheses are balanced, and a backslash before its quote loses its own escape.
CLOSING = f"'+str({CODE})+'"
EXPLOITS = ('{{$EXPLOIT:x}}', f"""{{{{$UNSET:a|(("\\'+str({CODE}),))#}}}}""", '{{ fileDirname }}', '{{_base_.model}}')
slow_to_draw = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_coco(root: Path, classes: tuple[str, ...], image: str = 'a.png') -> Path:
    save(root / 'images' / image, PIXELS)
    (root / 'train.json').write_text(json.dumps(dict(
        images=[dict(id=1, file_name=image, width=48, height=40)],
        categories=[dict(id=index, name=name) for index, name in enumerate(classes, 1)],
        annotations=[dict(id=index, image_id=1, category_id=index, bbox=[4, 4, 9, 9], area=81, iscrowd=0)
                     for index in range(1, len(classes) + 1)])))
    (root / 'val.json').write_bytes((root / 'train.json').read_bytes())
    return root


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('EXPLOIT', CLOSING)
    yield
    assert not (tmp_path / 'made').exists()


def read(path: Path) -> Config:
    cfg = Config.fromfile(path)
    assert not cfg.env_variables
    return cfg


@pytest.mark.parametrize('name', EXPLOITS)
def test_a_category_does_not_run_code(name: str, tmp_path: Path) -> None:
    new_config(write_coco(tmp_path / 'data', (name,)), tmp_path / 'my.py', 'boxes')
    assert read(tmp_path / 'my.py').train_dataloader.dataset.metainfo.classes == (name,)


@pytest.mark.parametrize('name', EXPLOITS)
def test_a_class_of_label_maps_does_not_run_code(name: str, tmp_path: Path) -> None:
    for split in ('train', 'val'):
        save(tmp_path / f'data/{split}/images/a.png', PIXELS)
        save(tmp_path / f'data/{split}/masks/a.png', np.eye(40, 48, dtype=np.uint8))
    (tmp_path / 'data/classes.txt').write_text(f'{name}\nroad\n')
    new_config(tmp_path / 'data', tmp_path / 'my.py')
    assert read(tmp_path / 'my.py').train_dataloader.dataset.metainfo.classes == (name, 'road')


@pytest.mark.slow
@pytest.mark.parametrize('name', EXPLOITS[:2])
def test_a_category_does_not_run_code_where_a_backbone_is_swapped(name: str, tmp_path: Path) -> None:
    write_coco(tmp_path / 'data', (name,))
    done = subprocess.run(
        [sys.executable, ROOT / 'tools/misc/swap_backbone.py', 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py',
         'my.py', '--data', 'data'], capture_output=True, text=True,
        env={**os.environ, 'PYTHONPATH': str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / 'my.py').train_dataloader.dataset.metainfo.classes == (name,)


@pytest.mark.slow
@slow_to_draw
@given(st.lists(names.filter(str.strip), min_size=1, max_size=3, unique=True), file_names, file_names)
def test_names_come_back(classes: list[str], image: str, folder: str) -> None:
    with TemporaryDirectory() as temporary:
        root, out = Path(temporary, folder, 'data'), Path(temporary, folder, 'my.py')
        write_coco(root, tuple(classes), f'{image}.png')
        if any(map(is_half, ''.join(classes))):  # a config is UTF-8, which has no halves of surrogate pairs
            with pytest.raises(UserError, match='name is text without halves of surrogate pairs'):
                new_config(root, out, 'boxes')
            return
        new_config(root, out, 'boxes')
        cfg = read(out)
        assert cfg.train_dataloader.dataset.metainfo.classes == tuple(classes)
        assert cfg.data_root == f'{root}/'
        assert {path.name for path in Path(temporary, folder).iterdir()} == {'data', 'my.py'}
