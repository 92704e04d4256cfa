import csv
import io

from cpvt_mm.tables import markdown_table, to_csv


def test_csv_has_the_columns_of_all_rows() -> None:
    rows = [dict(name='a, b', value=1.5), dict(name='c', other=2)]
    assert list(csv.DictReader(io.StringIO(to_csv(rows)))) == [
        dict(name='a, b', value='1.5', other=''), dict(name='c', value='', other='2')]


def test_a_line_for_each_row() -> None:
    assert markdown_table(['name', 'value'], [['a', '1'], ['b', '']]) == (
        '| name | value |\n|---|---|\n| a | 1 |\n| b |  |\n')
