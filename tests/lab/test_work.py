"""Long work: processes that share it, and results that stay."""
import csv
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lab.candidates import Candidate
from lab.memory import measure_alone
from lab.results import Results, markdown_table, to_csv
from lab.work import Report, run_all, run_in_processes
from openmmlab_runs.errors import UserError
from tests.conftest import refusal
from tests.processes import is_alive, wait_until

from .subjects import SETTING, Told

RECIPE = dict(seed=1, model=dict(depths=(2, 3), path=Path('a')))


def square(number: int, report: Report) -> int:
    for done in range(number):
        report('multiplying', done + 1, number)
    return number * number


def fail(report: Report) -> None:
    raise UserError('it is told to.')


def die(report: Report) -> None:
    os._exit(3)


def wait(file: Path, report: Report) -> None:
    file.write_text(str(os.getpid()))
    time.sleep(100)


def test_tasks_run_in_their_order_each_after_the_last_result_is_taken(capsys: pytest.CaptureFixture) -> None:
    begun: list[int] = []
    results = run_all('Squaring', {str(i): lambda report, i=i: begun.append(i) or square(i, report) for i in (3, 2)})
    assert (next(results), begun) == (('3', 9), [3])
    assert list(results) == [('2', 4)]
    assert 'Squaring' in capsys.readouterr().out


@pytest.mark.slow
def test_processes_give_the_results_of_all() -> None:
    tasks = {str(i): partial(square, i) for i in range(5)}
    assert dict(run_in_processes('Squaring', tasks, 2)) == {str(i): i * i for i in range(5)}


@pytest.mark.slow
@pytest.mark.parametrize('task, words', [(fail, 'it is told to'), (die, 'a process died')])
def test_what_goes_wrong_ends_all(task: Callable[[Report], None], words: str, tmp_path: Path) -> None:
    file = tmp_path / 'pid'
    with pytest.raises(UserError, match=words):
        list(run_in_processes('Working', {'waits': partial(wait, file), 'other': task}, 2))
    assert not file.exists() or not is_alive(int(file.read_text()))


def work(file: str) -> None:
    list(run_in_processes('Waiting', dict(waits=partial(wait, Path(file))), 1))


def measure(file: str) -> None:
    measure_alone(Told(), Candidate('waits', dict(file=file)), SETTING)


@pytest.mark.slow
@pytest.mark.parametrize('name, number', [
    ('work', signal.SIGINT), ('work', signal.SIGKILL), ('measure', signal.SIGKILL)])
def test_processes_end_with_the_one_that_asked(name: str, number: int, tmp_path: Path) -> None:
    script, file = tmp_path / 'wait.py', tmp_path / 'pid'
    script.write_text(f"from {__name__} import {name}\nif __name__ == '__main__':\n    {name}({str(file)!r})\n")
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}
    asking = subprocess.Popen([sys.executable, script], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: file.exists() and file.read_text())
        # The one that works, multiprocessing's own, and perhaps the manager of what is shared.
        started = [int(pid) for pid in Path(f'/proc/{asking.pid}/task/{asking.pid}/children').read_text().split()]
        assert int(file.read_text()) in started
        asking.send_signal(number)
        wait_until(lambda: not any(map(is_alive, started)))
    finally:
        asking.kill()
        asking.wait()


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


@pytest.mark.parametrize('recipe, words', [
    (dict(RECIPE, model=dict(depths=(2, 4), path=Path('a'))), 'model.depths.1 = 3, not 4'),
    (dict(RECIPE, model={}), 'model.depths.0 = 2, not None'), (dict(RECIPE, more=[]), 'more = None, not []')])
def test_a_recipe_claims_the_folder_even_without_a_record(recipe: dict, words: str, tmp_path: Path) -> None:
    Results(tmp_path, RECIPE).write()
    assert len(Results(tmp_path, RECIPE)) == 0
    assert f'results.json has results with {words}: choose another folder' in refusal(Results, tmp_path, recipe)


def test_a_recipe_with_nan_is_the_same_again(tmp_path: Path) -> None:
    for records in ({}, dict(a=dict(mIoU=1.))):
        results = Results(tmp_path, dict(lr=float('nan')))
        assert dict(results) == records
        results.put('a', dict(mIoU=1.))
    told = refusal(Results, tmp_path, dict(lr=1.))
    assert 'results.json has results with lr = nan, not 1.0: choose' in told


@pytest.mark.parametrize('text', ['', '[]', '{"recipe": {}}'])
def test_another_file_is_left_as_it_is(text: str, tmp_path: Path) -> None:
    (tmp_path / 'results.json').write_text(text)
    assert 'has no results of this tool' in refusal(Results, tmp_path, RECIPE)
    assert (tmp_path / 'results.json').read_text() == text


def test_rows_as_csv_with_the_columns_of_all_and_as_lines_of_markdown() -> None:
    rows = [dict(name='a, b', value=1.5), dict(name='c', other=2)]
    assert list(csv.DictReader(io.StringIO(to_csv(rows)))) == [
        dict(name='a, b', value='1.5', other=''), dict(name='c', value='', other='2')]
    assert markdown_table(['a', 'b'], [['c', '1'], ['d', '']]) == '| a | b |\n|---|---|\n| c | 1 |\n| d |  |\n'
