"""How configs are read, and keys of them that nothing reads."""
import sys
from pathlib import Path
from typing import Any

import pytest

from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from tests.conftest import ROOT, UPERNET


def test_options_override_and_the_work_dir_is_named_after_the_config() -> None:
    cfg = load_config(UPERNET, {'model.backbone.arch': 'tiny'})
    assert (cfg.model.backbone.arch, cfg.work_dir, cfg.launcher) == ('tiny', f'work_dirs/{UPERNET.stem}', 'none')
    assert load_config(UPERNET, {'work_dir': 'a'}).work_dir == 'a'
    assert load_config(UPERNET, {'work_dir': 'a'}, work_dir='b').work_dir == 'b'


@pytest.mark.parametrize('text, words', [
    (None, ('does not exist',)), ("_base_ = './missing.py'", ('missing.py',)), ('model = dict(', ('SyntaxError',)),
    ("raise ValueError('seven')", ('ValueError', 'seven')),
    ("default_scope = 'mmpose'", ('default_scope', "'mmpose'", 'mmdet, mmseg or mmpretrain')),
    ('model = dict()', ('default_scope', 'None')),
])
def test_what_cannot_be_run_is_answered_in_one_sentence(tmp_path: Path, text: str | None, words: tuple[str, ...]
                                                        ) -> None:
    path = tmp_path / 'config.py'
    if text:
        path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_config(path)
    message = str(caught.value)
    assert all(word in message for word in (str(path), *words)), message
    assert '\n' not in message


def test_options_that_do_not_fit_are_named() -> None:
    with pytest.raises(UserError, match=r'--cfg-options do not fit'):
        load_config(UPERNET, {'param_scheduler.7.begin': 3})


def test_a_library_that_a_base_file_is_of_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('mmengine.config.config.is_installed', lambda package: False)
    monkeypatch.setitem(sys.modules, 'mmpretrain', None)
    with pytest.raises(ImportError, match=r'cpvt_mm needs mmpretrain.* pip install mmpretrain'):
        load_config(ROOT / 'configs/cpvt/cpvt-ti_16xb64_in1k.py')


@pytest.mark.parametrize('options, line, expected', [
    ({'data_root': '/x'}, '', '--cfg-options data_root is not used: did you mean train_dataloader.dataset.data_root.'),
    ({'modle.type': 'A'}, '', '--cfg-options modle is not used: did you mean model.'),
    ({'lrr': 1}, '', '--cfg-options lrr is not used: did you mean optim_wrapper.optimizer.lr.'),
    ({'zzz': 1}, '', '--cfg-options zzz is not used.'),
    ({'work_dir': 'a', 'train_cfg.max_iters': 3, 'load_from': None}, '', None),
    ({}, 'max_iter = 3', 'max_iter of config {path} is not used: did you mean train_cfg.max_iters.'),
    ({}, "modle = dict(type='A')", 'modle of config {path} is not used: did you mean model.'),
    ({}, 'max_iter = 3\ntrain_cfg = dict(max_iters=max_iter)', None),  # a variable
    ({}, 'colours = 3', None),  # near to nothing
])
def test_what_nothing_reads_is_named(options: dict[str, Any], line: str, expected: str | None, tmp_path: Path,
                                     log: list[tuple[str, str]]) -> None:
    path = tmp_path / 'own.py'
    path.write_text(f'_base_ = {str(UPERNET)!r}\n{line}\n')
    load_config(path, options)
    assert [message for level, message in log if 'is not used' in message and level == 'WARNING'] == (
        [expected.format(path=path)] if expected else [])


def test_the_warning_about_pkg_resources_is_not_shown(tmp_path: Path) -> None:
    warns = "__import__('warnings').warn"
    (tmp_path / 'a.py').write_text(
        f"default_scope = 'mmdet'\n{warns}('pkg_resources is deprecated as an API')\n{warns}('another')\n")
    with pytest.warns(UserWarning) as shown:
        load_config(tmp_path / 'a.py')
    told = {str(warning.message) for warning in shown}
    assert 'another' in told and not any('pkg_resources' in text for text in told)
