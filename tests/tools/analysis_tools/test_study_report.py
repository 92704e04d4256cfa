import csv
from pathlib import Path

import pytest

from cpvt_lab.results import Row
from cpvt_lab.study_report import plot, to_markdown, write_comparison
from cpvt_mm.errors import UserError


def rows(*tests: str) -> list[Row]:
    """Two variants with two seeds; the second seed of the second is missing."""
    return [dict(variant=variant, seed=seed, test=test, parameters=1_950_000, seconds_per_iteration=seconds,
                 mIoU=50. + k + 2 * seed, AP=0.25 + 0.1 * k)
            for variant, seed, seconds in (('a', 0, 1.5), ('a', 1, 1.25), ('b', 0, None))
            for k, test in enumerate(tests)]


def test_a_line_of_the_table_is_a_variant_with_the_mean_of_its_seeds() -> None:
    assert to_markdown(rows('x', 'y'), ['mIoU', 'AP']).splitlines() == [
        '| variant | backbone, M params | s / iteration | mIoU, x | mIoU, y | AP, x | AP, y |',
        '|---|---|---|---|---|---|---|',
        '| a | 1.95 | 1.25 | 51.0 ± 1.0 | 52.0 ± 1.0 | 0.250 ± 0.000 | 0.350 ± 0.000 |',
        '| b | 1.95 |  | 50.0 | 51.0 | 0.250 | 0.350 |']
    assert to_markdown(rows('x'), ['mIoU']).startswith('| variant | backbone, M params | s / iteration | mIoU |\n')


def test_the_plot_has_a_panel_for_each_metric_and_a_line_for_each_variant() -> None:
    figure = plot(rows('x', 'y'), ['mIoU', 'AP'], 'title')
    assert [axes.get_ylabel() for axes in figure.axes] == ['mIoU', 'AP']
    first = figure.axes[0]
    assert [label.get_text() for label in first.get_xticklabels()] == ['x', 'y']
    assert [list(container.lines[0].get_ydata()) for container in first.containers] == [[51, 52], [50, 51]]


def test_the_csv_has_every_row_and_metric(tmp_path: Path) -> None:
    write_comparison(tmp_path, rows('x', 'y'), ['AP'], 'title')
    with open(tmp_path / 'results.csv') as file:
        written = list(csv.DictReader(file))
    assert [(row['variant'], row['seed'], row['test'], float(row['mIoU'])) for row in written] == [
        (row['variant'], str(row['seed']), row['test'], row['mIoU']) for row in rows('x', 'y')]
    assert {path.name for path in tmp_path.iterdir()} == {'results.csv', 'results.md', 'results.png'}


def test_a_metric_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'mAP' of the study is not a metric of its tests: choose from mIoU, AP"):
        write_comparison(tmp_path, rows('x'), ['mAP'], 'title')
    assert not list(tmp_path.iterdir())
