"""Tasks in processes of this machine, and on clusters: submitit's own processes."""
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from lab.processes import run_tasks
from openmmlab_tools.errors import UserError
from tests.processes import is_alive, wait_until


def run(where: str, tasks: dict[str, Callable[[], str]], logs: Path) -> Iterator[tuple[str, str]]:
    if where != 'processes':
        pytest.importorskip('submitit', reason='make test-clusters installs it')
    return run_tasks(tasks, 2, where, logs)


def write(path: Path) -> str:
    path.write_text(str(os.getpid()))
    return path.read_text()


def end_once(path: Path) -> str:
    if not path.exists():
        write(path)
        sys.exit(143)  # as a training after SIGTERM
    return path.read_text()


def wait(path: Path) -> str:
    write(path)
    time.sleep(600)
    return ''


def refuse(path: Path) -> str:
    wait_until(path.exists)
    raise UserError('it is told to.')


def die(path: Path) -> str:
    wait_until(path.exists)
    os._exit(3)


@pytest.mark.slow
@pytest.mark.parametrize('where', ['processes', 'local'])
def test_all_tasks_run_in_other_processes_in_the_same_folder_and_again_after_a_signal(
        where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = {'a': partial(write, Path('a')), 'b': partial(write, Path('b')), 'ends': partial(end_once, Path('ends'))}
    actual = dict(run(where, tasks, tmp_path / 'logs'))
    assert actual == {name: (tmp_path / name).read_text() for name in tasks} and str(os.getpid()) not in actual.values()


@pytest.mark.slow
@pytest.mark.parametrize('where, task, sentence', [
    ('processes', die, 'a process died'), *((where, refuse, r'^it is told to\.$') for where in ('processes', 'local'))])
def test_an_error_is_its_sentence_and_ends_the_others(where: str, task: Callable[[Path], str], sentence: str,
                                                      tmp_path: Path) -> None:
    file = tmp_path / 'pid'
    with pytest.raises(UserError, match=sentence):
        list(run(where, dict(waits=partial(wait, file), other=partial(task, file)), tmp_path / 'logs'))
    wait_until(lambda: not is_alive(int(file.read_text())))
