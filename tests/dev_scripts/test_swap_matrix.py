from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from stock_configs.matrix import Record, list_configs, open_results

SCRIPT = '../.dev_scripts/swap_matrix.py'


@pytest.mark.slow
def test_does_what_is_not_done_yet(run_tool: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    done, to_do = (config for config in list_configs('mmdet') if config.startswith('yolof/'))
    kept = asdict(Record('mmdet', done, 'ResNet', 'refused', 'it was kept.'))
    open_results(tmp_path / 'work').put(f'mmdet::{done}', kept)
    assert run_tool(SCRIPT, '--libraries', 'mmdet', '--families', 'yolof', '--jobs', 1, '--work-dir', tmp_path / 'work',
                    '--out', tmp_path / 'matrix.md') == ''
    page = (tmp_path / 'matrix.md').read_text()
    assert '| yolof | 2 | 1 |  | 1 |  |  |  | ran |' in page and 'it was kept.' in page
    assert page in capsys.readouterr().out
    assert dict(open_results(tmp_path / 'work')) == {
        f'mmdet::{done}': kept, f'mmdet::{to_do}': asdict(Record('mmdet', to_do, 'ResNet', 'built', trial='ran'))}


def test_no_family_is_an_error(run_tool: Callable[..., str], tmp_path: Path) -> None:
    message = run_tool(SCRIPT, '--families', 'nosuch', '--work-dir', tmp_path / 'work')
    assert message == "error: no config is in nosuch: pass folders of the libraries' configs."
    assert not list(tmp_path.iterdir())
