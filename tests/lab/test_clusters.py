"""Tasks on clusters: submitit's own processes, and Ray on this machine."""
import os
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from lab.processes import run_on_cluster
from openmmlab_runs.errors import UserError
from tests.processes import is_alive, wait_until


@pytest.fixture(params=['local', 'ray'])
def cluster(request: pytest.FixtureRequest) -> str:
    pytest.importorskip('ray' if request.param == 'ray' else 'submitit', reason='make test-clusters installs it')
    return request.param


def write(path: Path) -> str:
    path.write_text(str(os.getpid()))
    return path.read_text()


def refuse(path: Path) -> None:
    wait_until(path.exists)
    raise UserError('it is told to.')


def end_once(path: Path) -> str:
    if not path.exists():
        write(path)
        sys.exit(143)  # as a training after SIGTERM
    return path.read_text()


def wait(path: Path) -> None:
    write(path)
    time.sleep(600)


@pytest.mark.slow
def test_all_tasks_run_in_other_processes_in_the_same_folder_and_again_after_a_signal(
        cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = {'a': partial(write, Path('a')), 'b': partial(write, Path('b')), 'ends': partial(end_once, Path('ends'))}
    found = dict(run_on_cluster(tasks, 2, cluster, tmp_path / 'logs'))
    assert found == {name: (tmp_path / name).read_text() for name in tasks} and str(os.getpid()) not in found.values()


@pytest.mark.slow
def test_an_error_is_its_sentence_and_ends_the_others(cluster: str, tmp_path: Path) -> None:
    file = tmp_path / 'pid'
    tasks = dict(waits=partial(wait, file), refuses=partial(refuse, file))
    with pytest.raises(UserError, match=r'^it is told to\.$'):
        list(run_on_cluster(tasks, 2, cluster, tmp_path / 'logs'))
    wait_until(lambda: not is_alive(int(file.read_text())))
