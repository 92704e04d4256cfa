"""Names in data are names: no config or file of a run that has them runs code, reads a variable or holds a secret."""
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmengine.config import Config

from cpvt_mm.data_config import new_config
from openmmlab_tools.engine import load_config, train
from openmmlab_tools.engine import test as evaluate
from openmmlab_tools.errors import UserError
from openmmlab_tools.predict.predicting import build_inferencer, infer
from openmmlab_tools.texts import CONTROLS
from tests.helpers import read_anywhere
from tests.odd_texts import file_names, is_half, names
from tests.openmmlab_tools.readers.layouts import NO_WORKERS
from tests.tools.conftest import change_annotations, save

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


def test_a_class_does_not_run_code(tmp_path: Path) -> None:
    write_coco(tmp_path / 'coco', EXPLOITS)
    for split in ('train', 'val'):
        save(tmp_path / f'maps/{split}/images/a.png', PIXELS)
        save(tmp_path / f'maps/{split}/masks/a.png', np.indices((40, 48))[1].astype(np.uint8) % len(EXPLOITS))
    (tmp_path / 'maps/classes.txt').write_text('\n'.join(EXPLOITS))
    for name in ('coco', 'maps'):
        new_config(tmp_path / name, tmp_path / f'{name}.py', arch='nano')
        assert read(tmp_path / f'{name}.py').train_dataloader.dataset.metainfo.classes == EXPLOITS


@pytest.mark.slow
@slow_to_draw
@given(st.lists(names.map(str.strip).filter(bool), min_size=1, max_size=3, unique=True), file_names, file_names)
def test_names_come_back(classes: list[str], image: str, folder: str) -> None:
    with TemporaryDirectory() as temporary:
        root, out = Path(temporary, folder, 'data'), Path(temporary, folder, 'my.py')
        write_coco(root, tuple(classes), f'{image}.png')
        if any(map(is_half, ''.join(classes))):  # a config is UTF-8, which has no halves of surrogate pairs
            with pytest.raises(UserError, match='name is text without halves of surrogate pairs'):
                new_config(root, out, 'boxes', 'nano')
            return
        new_config(root, out, 'boxes', 'nano')
        cfg = read(out)
        assert cfg.train_dataloader.dataset.metainfo.classes == tuple(classes)
        assert cfg.data_root == f'{root}/'
        assert {path.name for path in Path(temporary, folder).iterdir()} == {'data', 'my.py', 'my_annotations'}


CLASSES = (*EXPLOITS[:3], r'$\frac{$ \x1b[31m' + '\x1b]0;title\x07\r', '_hidden\n| a |')
READ = tuple(name.strip() for name in CLASSES)
SECRET = 's3cr3t'
OPTIONS = dict(key=SECRET, endpoint_url=f'https://me:{SECRET}@host/x?sig={SECRET}', timeout=3)


def odd_config(data: Path) -> Config:
    """A config for data with odd classes and secrets."""
    for file in data.glob('instances_*.json'):
        change_annotations(file, lambda coco: [category.update(name=name) for category, name in zip(
            coco['categories'], CLASSES, strict=True)])
    new_config(data, 'my.py', 'boxes', 'nano', iters=2, batch=2)
    cfg = load_config('my.py', NO_WORKERS, 'work')
    cfg.backend_args = OPTIONS
    return cfg


@pytest.mark.slow
def test_a_run_writes_no_template_and_no_secret(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    odd = odd_config(data)
    train(odd)
    shown = capsys.readouterr().out
    assert shown.count('do not contain its secrets (') == 1 and "set the store's environment variables" in shown
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
    assert Config.fromstring(checkpoint['meta']['cfg'], '.py').train_dataloader.dataset.metainfo.classes == READ

    copy = load_config('work/my.py', work_dir='again')
    assert copy.train_dataloader.dataset.metainfo.classes == READ and copy.backend_args == dict(
        key=None, endpoint_url='https://host/x', timeout=3)
    assert odd.backend_args == OPTIONS
    metrics = evaluate(copy, 'work/iter_2.pth', show_dir='painted')
    assert len(list(Path('painted').iterdir())) == 4 and 'coco/bbox_mAP' in metrics
    inferencer = build_inferencer(load_config('work/my.py'), 'work/iter_2.pth', 'cpu')
    image = next((tmp_path / 'data/images/validation').iterdir())
    prediction, = infer(inferencer, image)
    assert prediction.plot(0.).any() and prediction.classes == READ
