import time
from pathlib import Path

from cpvt_mm.swap.matrix import Trial
from cpvt_mm.swap.matrix_runs import _in_processes


def take_a_second(folder: str, name: str) -> Trial:
    Path(folder, name).touch()
    time.sleep(1)
    return Trial('mmdet', 'family', name, 'ran')


def test_who_stops_asking_stops_the_work(tmp_path: Path) -> None:
    """As an interruption does: what is written is kept, and of the rest no more than was begun is done."""
    (tmp_path / 'begun').mkdir()
    results = _in_processes(take_a_second, [(str(tmp_path / 'begun'), str(i)) for i in range(8)], 1,
                            tmp_path / 'trials.jsonl', lambda: None)
    assert next(results).config == '0'
    results.close()
    assert (tmp_path / 'trials.jsonl').read_text().count('\n') == 1
    assert len(list((tmp_path / 'begun').iterdir())) <= 4  # a process holds one, and one or two ahead
