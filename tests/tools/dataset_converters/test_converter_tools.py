from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.dataset_converters.originals import make_segnet_camvid, make_stage1_train

Run = Callable[..., str]


@pytest.mark.parametrize('name, make', [('nuclei', make_stage1_train), ('camvid', make_segnet_camvid)])
def test_writes_once_and_refuses_to_overwrite(name: str, make: Callable[[Path], Path], run_tool: Run, tmp_path: Path,
                                              capsys: pytest.CaptureFixture) -> None:
    tool, source, root = f'dataset_converters/{name}.py', make(tmp_path / 'source'), tmp_path / 'data' / name
    assert run_tool(tool, source, root) == ''
    assert '100%' in capsys.readouterr().out
    written = {path: path.stat().st_mtime_ns for path in root.rglob('*')}
    assert written
    assert run_tool(tool, source, root) == f'error: {root} exists already: remove it, or choose another folder.'
    assert {path: path.stat().st_mtime_ns for path in root.rglob('*')} == written


@pytest.mark.parametrize('name', ['nuclei', 'camvid'])
def test_a_wrong_folder_is_one_sentence(name: str, run_tool: Run, tmp_path: Path) -> None:
    error = run_tool(f'dataset_converters/{name}.py', tmp_path, tmp_path / 'out')
    assert error.startswith(f'error: {tmp_path}') and 'pass the folder' in error and '\n' not in error
    assert not list(tmp_path.glob('out*'))
