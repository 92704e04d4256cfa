"""Data packed into tar files."""
import re
import tarfile
from pathlib import Path

import pytest
from mmengine import fileio

import openmmlab_runs.storage  # noqa: F401  # reads them
from tests.tools.conftest import Run


def test_shards_have_all_files_each_once_and_are_read_by_the_printed_root(
        data: Path, tmp_path: Path, run_tool: Run, capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / 'set[1]'
    folder.mkdir()
    expected = sorted(path.relative_to(data).as_posix() for path in data.rglob('*') if path.is_file())
    (data / '.hidden').touch()
    (data / 'images').rename(tmp_path / 'elsewhere')
    (data / 'images').symlink_to(tmp_path / 'elsewhere')
    assert run_tool('dataset_converters/pack_shards.py', data, folder / 'toy', '--shards', 3) == ''
    root, = re.fullmatch("data_root='(tar://.+/)'", capsys.readouterr().out.strip()).groups()
    shards = [folder / f'toy-0000{number}-of-00003.tar' for number in range(3)]
    assert sorted(folder.iterdir()) == shards
    names = []
    for shard in shards:
        with tarfile.open(shard) as file:
            *names_here, last = file.getnames()
            names += names_here
            assert last == '.members.json'
    assert names == expected
    assert all(fileio.get(root + name) == (data / name).read_bytes() for name in expected)


def test_what_is_there_is_kept(data: Path, tmp_path: Path, run_tool: Run) -> None:
    (tmp_path / 'toy-00007.tar').touch()
    error = run_tool('dataset_converters/pack_shards.py', data, tmp_path / 'toy', '--shards', 3)
    assert error == f'error: {tmp_path}/toy-00007.tar exists already: choose another file.'
    for count in (0, 1000):
        error = run_tool('dataset_converters/pack_shards.py', data, tmp_path / 'other', '--shards', count)
        assert error.startswith(f'error: {data} has ') and f'do not fill {count} shards' in error
    assert [path.name for path in tmp_path.glob('*.tar')] == ['toy-00007.tar']
