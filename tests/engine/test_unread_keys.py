"""Top-level keys that nothing reads."""
from pathlib import Path
from typing import Any

import pytest

from cpvt_mm.engine import load_config
from tests.conftest import MASK_RCNN, UPERNET


def warnings(log: list[tuple[str, str]]) -> list[str]:
    return [message for level, message in log if level == 'WARNING' and 'is not used' in message]


@pytest.mark.parametrize('options, expected', [
    ({'data_root': '/x'}, [
        '--cfg-options data_root is not used: did you mean train_dataloader.dataset.data_root.']),
    ({'modle.type': 'A'}, ['--cfg-options modle is not used: did you mean model.']),
    ({'lrr': 1}, ['--cfg-options lrr is not used: did you mean optim_wrapper.optimizer.lr.']),
    ({'zzz': 1}, ['--cfg-options zzz is not used.']),
    ({'work_dir': 'a', 'train_cfg.max_iters': 3, 'load_from': None}, []),
])
def test_options(options: dict[str, Any], expected: list[str], log: list) -> None:
    load_config(UPERNET, options)
    assert warnings(log) == expected


@pytest.mark.parametrize('line, expected', [
    ('max_iter = 3', 'max_iter of config {path} is not used: did you mean train_cfg.max_iters.'),
    ("modle = dict(type='A')", 'modle of config {path} is not used: did you mean model.'),
    ('max_iter = 3\ntrain_cfg = dict(max_iters=max_iter)', ''),  # a variable
    ('colours = 3', ''),  # near to nothing
])
def test_lines_of_the_file(line: str, expected: str, tmp_path: Path, log: list) -> None:
    path = tmp_path / 'own.py'
    path.write_text(f'_base_ = {str(UPERNET)!r}\n{line}\n')
    load_config(path)
    assert warnings(log) == ([expected.format(path=path)] if expected else [])


@pytest.mark.parametrize('path', [MASK_RCNN, UPERNET, *sorted(MASK_RCNN.parents[1].glob('*cpvt/*.py'))],
                         ids=lambda path: path.stem)
def test_configs_of_this_project_have_none(path: Path, log: list) -> None:
    if 'in1k' not in path.stem:  # they need mmpretrain
        load_config(path)
        assert warnings(log) == []
