import pytest

from cpvt_mm.analysis import progress
from cpvt_mm.analysis.progress import TimeIterations


def test_the_median_leaves_out_what_happens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = TimeIterations()
    assert timer.median() is None
    ends = iter([0., 1., 2., 50., 51.])  # a validation after the third
    monkeypatch.setattr(progress.time, 'perf_counter', lambda: next(ends))
    for i in range(5):
        timer.after_train_iter(None, i)
    assert timer.median() == 1
