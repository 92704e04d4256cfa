"""Scripts that check the project: its tests alone and in other orders, and the numbers of README and docs."""
import json
import re
from pathlib import Path

import pytest
import torch

from lab.maintenance.isolated_tests import fast_files, orders
from lab.maintenance.numbers_of_docs import NUMBER, find_tables, tables
from lab.maintenance.table_smoothness import neighbour_correlation
from tests.conftest import ROOT
from tests.tools.conftest import Run

SCRIPT = '../lab/maintenance/isolated_tests.py'
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


def test_the_sources_of_all_tables_are_named() -> None:
    assert len(tables()) > 15 and not [table for table in tables() if table.source is None]


@pytest.mark.parametrize('source', sorted({table.source for table in tables() if table.source}))
def test_the_command_is_there(source: str) -> None:
    words = [word.strip(';') for word in source.split()]
    folders = ('tools/', 'configs/', 'examples/', 'lab/maintenance/')
    files = [word for word in words if word.startswith(folders) and '{' not in word]
    assert source.startswith('not measured, ') or 'CONFIG' in source or files
    assert all((ROOT / file).exists() for file in files)


@pytest.mark.parametrize('pattern', [r'\]\((docs/\S+?)\)', NUMBER.pattern], ids=['links', 'numbers'])
def test_both_readmes_have_the_same(pattern: str) -> None:
    pages = [(ROOT / name).read_text() for name in ('README.md', 'README_zh-CN.md')]
    english, chinese = (sorted(re.findall(pattern, page)) for page in pages)
    assert english and english == chinese


def test_a_table_without_a_source_is_found() -> None:
    table = '| a | b |\n|---|---|\n| 1 | 2.5 |\n'
    assert [tuple(found) for found in find_tables('page', f'Text\n{table}')] == [('page', 2, None)]
    marked = f'<!-- numbers: python a.py -->\n{table}\n| a |\n|---|\n| arXiv 2010.11929 |\n'
    assert [tuple(found) for found in find_tables('page', marked)] == [('page', 2, 'python a.py')]


def test_correlation_of_neighbours() -> None:
    signs = torch.ones(8, 8).index_fill(0, torch.arange(0, 8, 2), -1)
    halves = torch.ones(8, 8).index_fill(0, torch.arange(4), -1)
    assert neighbour_correlation((signs * signs.T)[..., None]) == pytest.approx(-1)  # a chessboard
    assert neighbour_correlation(signs[..., None]) == pytest.approx(0)  # stripes: -1 down, 1 across
    assert neighbour_correlation(halves[..., None]) == pytest.approx((5 / 7 + 1) / 2)  # one of seven steps differs
