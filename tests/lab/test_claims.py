"""Verdicts on the statements of the paper on PEG: from the CSV files to the tables of the page."""
import csv
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cpvt_mm import CPVT
from lab.claims import Cell, Claim, Gap, by_cell
from lab.commands.peg_claims import CORNER_CLASSIFIER, PYRAMID_STREETS, QUARTERS, STREETS, fill, tables_of
from lab.peg_claims import PYRAMID, STATEMENTS
from lab.results import to_csv
from tests.helpers import ROOT, refusal
from tests.tools.conftest import Run, read_rows

RESULTS = ROOT / 'docs/results'
PAGE = RESULTS / 'ablations.md'
FILES = (STREETS, QUARTERS, PYRAMID_STREETS, CORNER_CLASSIFIER)


A, B = Cell('a'), Cell('b')


def claim(higher: Cell | Gap = A, lower: Cell | Gap | None = B, margin: float = 0.) -> Claim:
    return Claim('name', 'A is better than B', 'section', '2 against 1', higher, lower, margin)


@pytest.mark.parametrize(('a', 'b', 'margin', 'verdict'), [
    ([2, 3], [1, 1.5], 0, 'same'), ([1, 1.5], [2, 3], 0, 'opposite'), ([1, 3], [2, 2.5], 0, 'cannot tell'),
    ([2, 3], [2, 1], 0, 'cannot tell'),  # equal seeds do not tell
    ([2], [1, 0], 0, 'cannot tell'), ([2, 3], [1], 0, 'cannot tell'), ([], [1], 0, None), ([1], [], 0, None),
    ([1, 1.5], [1.2, 1.9], 1, 'same'), ([1, 1.5], [3, 4], 1, 'opposite'), ([1, 3], [1.5, 1.5], 1, 'cannot tell')])
def test_seeds_must_agree(a: list[float], b: list[float], margin: float, verdict: str | None) -> None:
    values = {('a', '1x'): dict(enumerate(a)), ('b', '1x'): dict(enumerate(b))}
    assert claim(margin=margin).verdict(values) == verdict


def test_a_gap_is_of_the_seeds_that_both_have() -> None:
    values = {('a', '2x'): {0: 3., 1: 5., 2: 9.}, ('b', '2x'): {1: 1., 0: 2.}, ('a', '1x'): {0: 1.}}
    gap = Gap(Cell('a', '2x'), Cell('b', '2x'))
    assert claim(gap, None).sides(values) == ([1., 4.], [0.]) and claim(gap, None).verdict(values) == 'same'
    values['a', '1x'][1] = 2.
    assert claim(gap, Cell('a')).verdict(values) == 'cannot tell'  # 1 is not above 1


def test_rows_without_the_metric_have_no_value() -> None:
    rows = list(csv.DictReader(to_csv([dict(variant='a', seed=0, test='1x', mIoU=1.5),
                                       dict(variant='b', seed=0, test='1x')]).splitlines()))
    assert by_cell(rows) == {('a', '1x'): {0: 1.5}}


def test_the_page_has_what_the_script_writes(run_tool: Run, tmp_path: Path) -> None:
    for name in (PAGE.name, *FILES):
        shutil.copy(RESULTS / name, tmp_path / name)
    assert run_tool('lab peg_claims', tmp_path / PAGE.name) == ''
    assert (tmp_path / PAGE.name).read_text() == PAGE.read_text()


def change(path: Path, variant: str, value: Callable[[float], float]) -> None:
    """Changes the mIoU of all seeds of a variant, at the training size."""
    rows = read_rows(path)
    for row in rows:
        if (row['variant'], row['test']) == (variant, '1x'):
            row['mIoU'] = str(value(float(row['mIoU'])))
    path.write_text(to_csv(rows))


def verdicts(folder: Path) -> dict[str, list[str]]:
    lines = [line.strip('|\n ').split(' | ') for line in tables_of(folder)['statements'].splitlines()[2:]]
    return {cells[0]: cells[5::2] for cells in lines}


def test_a_changed_cell_changes_the_verdict(tmp_path: Path) -> None:
    for name in FILES:
        shutil.copy(RESULTS / name, tmp_path / name)
    before = verdicts(tmp_path)
    assert len(before) == len(STATEMENTS)
    change(tmp_path / STREETS, 'none', lambda value: 0.)
    assert verdicts(tmp_path)['position'] == ['same', before['position'][1]]
    change(tmp_path / STREETS, 'none', lambda value: 100.)
    after = verdicts(tmp_path)
    assert after['position'] == ['opposite', before['position'][1]]
    assert {name for name in before if before[name] != after[name]} <= {'position', 'fixed against none'}
    change(tmp_path / STREETS, 'table', lambda value: 100. + (value > 19))
    assert verdicts(tmp_path)['position'][0] != 'opposite'


def test_each_row_has_at_least_two_seeds_and_what_claims_compare() -> None:
    for name, claims in ((STREETS, STATEMENTS), (QUARTERS, STATEMENTS), (PYRAMID_STREETS, PYRAMID)):
        values = by_cell(read_rows(RESULTS / name))
        assert min(map(len, values.values())) >= 2
        assert all(claim.verdict(values) for claim in claims)
    for name in (STREETS, QUARTERS):
        values = by_cell(read_rows(RESULTS / name))
        assert len({variant for variant, _ in values}) == 25 and len({test for _, test in values}) == 5


def test_a_page_without_a_table_and_a_study_without_a_row_are_refused(tmp_path: Path) -> None:
    assert "has 0 tables 'streets'" in refusal(fill, '# Page\n', dict(streets='| a |\n'))
    for name in FILES:
        shutil.copy(RESULTS / name, tmp_path / name)
    rows = [row for row in read_rows(tmp_path / QUARTERS) if row['variant'] != 'PEG, reflect']
    (tmp_path / QUARTERS).write_text(to_csv(rows))
    assert "quarters has no values for 'zero padding: reflect'" in refusal(tables_of, tmp_path)


def test_links_to_statements_name_one() -> None:
    """Other pages write the name of a statement as the text of the link."""
    names = {claim.name for claim in (*STATEMENTS, *PYRAMID)}
    links = re.findall(r'\[([^\[\]]+)\]\[statements\]', (ROOT / 'docs/explanations/peg.md').read_text())
    assert len(links) >= 5 and set(links) <= names


def test_parameters_are_those_that_the_paper_counts() -> None:
    """Counts the weights of DeiT-tiny at 224 pixels, without biases, as the paper does."""

    def count(**encoding: object) -> int:
        backbone = CPVT('tiny', img_size=224, position_encoding=encoding)
        return sum(parameter.numel() for parameter in backbone.position_encoding.parameters())

    assert count(type='PEG', bias=False) == 192 * 3 * 3 == 1_728
    assert count(type='LearnablePE') == 14 * 14 * 192 == 37_632
    assert count(type='PEG', bias=False, conv_type='separable') == 192 * 192 + 192 * 3 * 3 == 38_592
