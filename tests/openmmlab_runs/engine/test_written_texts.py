"""What a run writes down: names from data mean themselves, and secrets stay in the running config."""
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mmengine.config import Config

from cpvt_mm.new_config import new_config
from openmmlab_runs.engine import load_config, train
from openmmlab_runs.engine import test as evaluate
from openmmlab_runs.predicting import build_inferencer, paint
from openmmlab_runs.texts import CONTROLS
from tests.conftest import ROOT, read_anywhere
from tests.openmmlab_runs.data.test_texts_of_data import CLOSING, EXPLOITS

CLASSES = (*EXPLOITS[:3], r'$\frac{$ \x1b[31m' + '\x1b]0;title\x07\r', '_hidden\n| a |')
SECRET = 's3cr3t'
ADDRESS = f'https://me:{SECRET}@host/x?sig={SECRET}'
OPTIONS = dict(key=SECRET, endpoint_url=ADDRESS, timeout=3)
NONE = dict(key=None, endpoint_url='https://host/x', timeout=3)


@pytest.fixture
def odd(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """A config for data with odd classes, which a run trains in the current folder; no code of theirs runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('EXPLOIT', CLOSING)
    for file in data.glob('instances_*.json'):
        coco = json.loads(file.read_text())
        for category, name in zip(coco['categories'], CLASSES, strict=True):
            category['name'] = name
        file.write_text(json.dumps(coco))
    new_config(data, 'my.py', 'boxes', iters=2, batch=2)
    options = {f'{split}_dataloader.{key}': value for split in ('train', 'val', 'test')
               for key, value in dict(num_workers=0, persistent_workers=False).items()}
    cfg = load_config('my.py', options, 'work')
    cfg.backend_args = OPTIONS
    yield cfg
    assert not (tmp_path / 'made').exists()


@pytest.mark.slow
def test_a_run_writes_no_template_and_no_secret(odd: Config, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    train(odd)
    shown = capsys.readouterr().out
    assert shown.count('have no secrets (') == 1 and 'to use a copy, set the variables of the store' in shown
    assert not CONTROLS.search(shown.replace('\n', ''))
    texts = [path for path in Path('work').rglob('*') if path.suffix in ('.py', '.log', '.json', '.txt')]
    assert {'my.py', 'config.py', 'validations.json'} <= {path.name for path in texts}
    for path in texts:
        text = path.read_text(encoding='utf-8')
        assert SECRET not in text and not CONTROLS.search(text.replace('\n', '')), path
        assert '{{' not in text or path.suffix == '.json' or path.suffix == '.log', path
    assert (tmp_path / 'work/confusion.png').exists() and (tmp_path / 'work/curve.png').exists()

    checkpoint = read_anywhere(Path('work/iter_2.pth'))
    assert SECRET not in str({key: value for key, value in checkpoint.items() if key != 'state_dict'})
    assert Config.fromstring(checkpoint['meta']['cfg'], '.py').train_dataloader.dataset.metainfo.classes == CLASSES

    copy = load_config('work/my.py', work_dir='again')
    assert copy.train_dataloader.dataset.metainfo.classes == CLASSES and copy.backend_args == NONE
    assert odd.backend_args == OPTIONS
    metrics = evaluate(copy, 'work/iter_2.pth', show_dir='painted')
    assert len(list(Path('painted').iterdir())) == 4 and 'coco/bbox_mAP' in metrics
    inferencer = build_inferencer(load_config('work/my.py'), 'work/iter_2.pth', 'cpu')
    image = next((tmp_path / 'data/images/validation').iterdir())
    painted, prediction = paint(inferencer, image, score_thr=0.)
    assert painted.any() and prediction.classes == CLASSES


@pytest.mark.slow
def test_a_run_works_in_an_ascii_locale(data: Path, tmp_path: Path) -> None:
    names = data / 'instances_training.json'
    coco = json.loads(names.read_text())
    coco['categories'][0]['name'] = '名é'
    for file in data.glob('instances_*.json'):
        file.write_text(json.dumps({**json.loads(file.read_text()), 'categories': coco['categories']}))
    env = {**os.environ, 'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0', 'PYTHONPATH': str(ROOT)}
    env.pop('PYTHONIOENCODING', None)

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=env, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    run(str(ROOT / 'tools/misc/new_config.py'), 'data', 'my.py', '--task', 'boxes', '--iters', '2', '--batch', '2')
    shown = run(str(ROOT / 'tools/train.py'), 'my.py', '--work-dir', 'work', '--cfg-options', 'log_level=INFO', *(
        f'{split}_dataloader.{key}' for split in ('train', 'val', 'test')
        for key in ('num_workers=0', 'persistent_workers=False')))
    assert r'\u540d\xe9' in shown
    assert load_config(tmp_path / 'work/my.py').train_dataloader.dataset.metainfo.classes[0] == '名é'
