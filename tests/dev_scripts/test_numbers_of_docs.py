"""Every table of numbers in README and docs says which command makes it."""
import re

import pytest
import torch

from numbers_of_docs import NUMBER, find_tables, tables
from table_smoothness import neighbour_correlation
from tests.conftest import ROOT


def test_the_sources_of_all_tables_are_named() -> None:
    assert len(tables()) > 15 and not [table for table in tables() if table.source is None]


@pytest.mark.parametrize('source', sorted({table.source for table in tables() if table.source}))
def test_the_command_is_there(source: str) -> None:
    words = [word.strip(';') for word in source.split()]
    folders = ('tools/', 'configs/', 'examples/', '.dev_scripts/')
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
