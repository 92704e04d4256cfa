from collections.abc import Callable
from pathlib import Path

Run = Callable[..., str]


def test_writes_once_and_refuses_to_overwrite(run_tool: Run, tmp_path: Path) -> None:
    root = tmp_path / 'toy'
    assert run_tool('dataset_converters/make_toy_shapes.py', root, '--num-train', 2, '--num-val', 1) == ''
    written = {path: path.stat().st_mtime_ns for path in root.rglob('*')}
    assert len(written) == 2 + 4 + 6 + 3
    assert run_tool('dataset_converters/make_toy_shapes.py', root, '--num-train', 2, '--num-val', 1) == ''
    assert {path: path.stat().st_mtime_ns for path in root.rglob('*')} == written
    message = run_tool('dataset_converters/make_toy_shapes.py', root, '--num-train', 3)
    assert message.startswith(f'error: {root} exists, but is not a toy dataset of')
    assert 'remove it, or choose another folder' in message
