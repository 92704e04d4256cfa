import sys
from pathlib import Path

import pytest

from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from tests.conftest import ROOT, UPERNET


def test_options_override_and_the_work_dir_is_named_after_the_config() -> None:
    cfg = load_config(UPERNET, {'model.backbone.arch': 'tiny'})
    assert cfg.model.backbone.arch == 'tiny'
    assert cfg.work_dir == f'work_dirs/{UPERNET.stem}'
    assert cfg.launcher == 'none'


def test_the_command_lines_work_dir_comes_before_the_configs() -> None:
    assert load_config(UPERNET, {'work_dir': 'a'}).work_dir == 'a'
    assert load_config(UPERNET, {'work_dir': 'a'}, work_dir='b').work_dir == 'b'


@pytest.mark.parametrize('text, words', [
    ("_base_ = './missing.py'", ('missing.py',)),
    ('model = dict(', ('SyntaxError',)),
    ("raise ValueError('seven')", ('ValueError', 'seven')),
    ("default_scope = 'mmpose'", ('default_scope', "'mmpose'", 'mmdet, mmseg or mmpretrain')),
    ('model = dict()', ('default_scope', 'None')),
])
def test_what_cannot_be_run_is_answered_in_one_sentence(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / 'config.py'
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_config(path)
    message = str(caught.value)
    assert all(word in message for word in (str(path), *words)), message
    assert '\n' not in message


def test_a_missing_config_and_options_that_do_not_fit_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'config .*nowhere\.py does not exist'):
        load_config(tmp_path / 'nowhere.py')
    with pytest.raises(UserError, match=r'--cfg-options do not fit'):
        load_config(UPERNET, {'param_scheduler.7.begin': 3})


def test_a_library_that_a_base_file_is_of_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('mmengine.config.config.is_installed', lambda package: False)
    monkeypatch.setitem(sys.modules, 'mmpretrain', None)
    with pytest.raises(ImportError, match=r'cpvt_mm needs mmpretrain.* pip install mmpretrain'):
        load_config(ROOT / 'configs/cpvt/cpvt-ti_16xb64_in1k.py')
