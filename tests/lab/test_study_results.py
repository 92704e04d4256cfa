"""The best variants in the results of studies, and their figure."""
from pathlib import Path

import pytest

from lab.commands.study_results import best_of, best_table, plot, read_rows
from tests.helpers import ROOT, refusal

CSV = 'variant,seed,test,parameters,mIoU\n' + ''.join(
    f'{variant},{seed},{test},1000,{value}\n' for variant, *values in (
        ('"a, b"', 1, 3, 5, 6), ('c', 2.5, 3.5, 1, 2), ('d', 9, None, 9, None))
    for (test, seed), value in zip((('1x', 0), ('1x', 1), ('2x', 0), ('2x', 1)), values, strict=True)
    if value is not None)


def test_the_best_has_the_highest_mean_and_overlapping_ranges_are_as_good(tmp_path: Path) -> None:
    (tmp_path / 'r.csv').write_text(CSV)
    rows = read_rows([tmp_path / 'r.csv'])
    assert best_table(rows, 'mIoU').splitlines()[2:] == ['| 1x | c | 3 | a, b |', '| 2x | a, b | 5.5 |  |']
    assert [row['variant'] for row in read_rows([tmp_path / 'r.csv'], ['c', 'a, b'])] == ['c'] * 4 + ['a, b'] * 4
    assert "no results of e: choose from a, b, c, d." in refusal(read_rows, [tmp_path / 'r.csv'], ['e'])
    figure = plot(rows, 'mIoU', 'c', 'size')
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == ['a, b', 'd']
    assert figure.get_supxlabel() == 'size' and figure.get_supylabel() == 'mIoU, %'


@pytest.mark.parametrize('scores, best', [
    (dict(a=[1, 2], b=[2, 3]), ['b', 'a']), (dict(a=[1, 1.9], b=[2, 3]), ['b']),
    (dict(a=[9], b=[2, 3]), ['b']), (dict(a=[9]), [])])
def test_variants_of_one_seed_are_not_the_best(scores: dict[str, list[float]], best: list[str]) -> None:
    assert best_of(scores) == best


def test_the_best_encodings_of_the_published_results() -> None:
    """docs/guides/position_encodings.md recommends these for streets."""
    results = ROOT / 'docs/results'
    rows = read_rows([results / f'position_encodings_{name}.csv' for name in ('camvid_native', 'peg_with_camvid')])
    lines = dict(line.split('|')[1:3] for line in best_table(rows, 'mIoU').splitlines()[2:])
    assert {test.strip(): best.strip() for test, best in lines.items()} == {
        '0.5x': 'LookHere', '0.75x': 'LookHere', '1x': 'PEG + mixed rotary', '1.5x': 'PEG + parabolic',
        '2x': 'PEG + LookHere', '3x': 'rotary of DINOv3'}
