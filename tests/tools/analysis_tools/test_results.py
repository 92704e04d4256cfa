import csv
import io
from pathlib import Path

import pytest

from cpvt_lab.results import Results, markdown_table, to_csv
from cpvt_mm.errors import UserError

RECIPE = dict(seed=1, model=dict(depths=(2, 3), path=Path('a')))


def test_goes_on_from_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / 'new/folder'
    results = Results(folder, RECIPE)
    assert not results and not folder.exists()
    results.put('a', dict(value=0.5))
    results.put('b', dict(value=None))
    results.put('a', dict(value=float('inf')))
    again = Results(folder, dict(reversed(RECIPE.items())))
    assert dict(again) == {'a': dict(value=float('inf')), 'b': dict(value=None)}
    assert [path.name for path in folder.iterdir()] == ['results.json']


def test_a_folder_can_be_claimed_before_there_is_a_record(tmp_path: Path) -> None:
    Results(tmp_path, RECIPE).write()
    assert len(Results(tmp_path, RECIPE)) == 0
    with pytest.raises(UserError):
        Results(tmp_path, dict(RECIPE, seed=2))


@pytest.mark.parametrize('recipe, words', [
    (dict(RECIPE, seed=2), 'seed = 1, not 2'),
    (dict(RECIPE, model=dict(depths=(2, 4), path=Path('a'))), 'model.depths.1 = 3, not 4'),
    (dict(RECIPE, model={}), 'model.depths.0 = 2, not None'),
    (dict(RECIPE, more=[]), r'more = None, not \[\]'),
])
def test_results_of_another_recipe_are_refused(recipe: dict, words: str, tmp_path: Path) -> None:
    Results(tmp_path, RECIPE).put('a', {})
    with pytest.raises(UserError, match=f'results.json has results with {words}: choose another folder'):
        Results(tmp_path, recipe)


@pytest.mark.parametrize('text', ['', '[]', '{"recipe": {}}'])
def test_another_file_is_left_as_it_is(text: str, tmp_path: Path) -> None:
    (tmp_path / 'results.json').write_text(text)
    with pytest.raises(UserError, match='has no results of this tool'):
        Results(tmp_path, RECIPE)
    assert (tmp_path / 'results.json').read_text() == text


def test_csv_has_the_columns_of_all_rows() -> None:
    rows = [dict(name='a, b', value=1.5), dict(name='c', other=2)]
    assert list(csv.DictReader(io.StringIO(to_csv(rows)))) == [
        dict(name='a, b', value='1.5', other=''), dict(name='c', value='', other='2')]


def test_a_line_for_each_row() -> None:
    assert markdown_table(['name', 'value'], [['a', '1'], ['b', '']]) == (
        '| name | value |\n|---|---|\n| a | 1 |\n| b |  |\n')
