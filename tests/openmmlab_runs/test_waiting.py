"""A wait has an end, and a line that says what is waited for."""
import threading

import pytest

from openmmlab_runs import waiting
from openmmlab_runs.waiting import TooLong, within


def test_what_ends_in_time_returns_or_raises_and_what_does_not_is_told_and_given_up(
        log: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, 'WORD', 0.01)
    hang = threading.Event()
    assert within('it', lambda: 3, 9) == 3
    with pytest.raises(KeyError, match='x'):
        within('it', lambda: {}['x'], 9)
    assert log == []
    with pytest.raises(TooLong, match='no answer in 0 seconds'):
        within('it', hang.wait, 0.05)
    assert log == [('INFO', 'waiting for it ...')]

    def more() -> float:
        hang.set()
        return 60

    assert within('it', hang.wait, 0.05, more) is True
    hang.clear()
    with pytest.raises(TooLong):
        within('it', hang.wait, 0.05, lambda: 1 / 0)  # the store does not say how long
    hang.set()
