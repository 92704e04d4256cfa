import json
import re
from pathlib import Path

import pytest

from isolated_tests import fast_files, orders
from tests.conftest import ROOT
from tests.tools.conftest import Run

SCRIPT = '../.dev_scripts/isolated_tests.py'
GOOD = 'def test_it(): pass'


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A file that passes, one that fails, and one with slow tests only."""
    texts = dict(good=GOOD, bad='def test_it(): assert 0', slow=f'import pytest\n@pytest.mark.slow\n{GOOD}')
    for name, text in texts.items():
        (tmp_path / f'test_{name}.py').write_text(text)
    return [tmp_path / f'test_{name}.py' for name in texts]


@pytest.mark.slow
def test_each_file_is_run_until_it_has_passed(files: list[Path], run_tool: Run, tmp_path: Path,
                                              capsys: pytest.CaptureFixture) -> None:
    arguments = SCRIPT, *files, '--jobs', 2, '--work-dir', tmp_path / 'work'
    good, bad, slow = files
    assert run_tool(*arguments) == f"error: 1 of 3 fail ({bad}): {tmp_path / 'work'} has their output."
    out = capsys.readouterr().out
    assert out.startswith('0 of 3 have passed before.\n[1/3, ')
    for path, last in ((good, '1 passed'), (bad, '1 failed'), (slow, '1 deselected')):
        assert re.search(rf'{path}: {last}.* in \d', out)
    log, = (tmp_path / 'work').glob('*.log')
    assert str(bad) in log.read_text() and 'assert 0' in log.read_text()
    bad.write_text(GOOD)
    assert run_tool(*arguments) == ''
    assert re.fullmatch(r'2 of 3 have passed before\.\n\[1/1, .*: 1 passed.*\n', capsys.readouterr().out)
    lines = (tmp_path / 'work/results.jsonl').read_text().splitlines()
    assert sorted(json.loads(line)['status'] for line in lines) == [0, 0, 1, 5]


@pytest.mark.slow
def test_each_order_is_run(files: list[Path], run_tool: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run_tool(SCRIPT, *files, '--orders', 2, '--processes', 1, 2, '--work-dir', tmp_path / 'work') == (
        f"error: 2 of 2 fail (seed 0, -n 1; seed 1, -n 2): {tmp_path / 'work'} has their output.")
    assert re.search(r'\] seed 0, -n 1: 1 failed, 1 passed', capsys.readouterr().out)


def test_orders_are_random_but_known() -> None:
    names = [str(number) for number in range(9)]
    first, second = orders(names, 2, [1]).values()
    assert first[:9] != second[:9] and sorted(first[:9]) == sorted(second[:9]) == names
    assert first == orders(names, 1, [1])['seed 0, -n 1']


def test_all_files_are_found() -> None:
    files = fast_files()
    assert str(Path(__file__).relative_to(ROOT)) in files
    assert not any(file.startswith('tests/gpu/') for file in files)
