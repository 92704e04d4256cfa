"""Hooks that tell how far a training or test is, and how fast."""
import statistics
import time
from itertools import pairwise

from mmengine.hooks import Hook
from mmengine.runner import Runner

from cpvt_mm.work import Report


class ReportIterations(Hook):
    """Reports the iterations that are done, and those in all, after each of training or testing.

    Args:
        report: Called after every iteration.
        what: What it is told to be done, such as 'training'.
    """

    def __init__(self, report: Report, what: str) -> None:
        self.report = report
        self.what = what

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: object = None,
                         outputs: object = None) -> None:
        self.report(self.what, runner.iter + 1, runner.max_iters)

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: object = None,
                        outputs: object = None) -> None:
        self.report(self.what, batch_idx + 1, len(runner.test_dataloader))


class TimeIterations(Hook):
    """Measures how long an iteration of training takes, with the loading of its data."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: object = None,
                         outputs: object = None) -> None:
        self.ends.append(time.perf_counter())

    def median(self) -> float | None:
        """Returns the median in seconds, which validation and checkpoints do not move; None before two iterations."""
        times = [end - start for start, end in pairwise(self.ends)]
        return statistics.median(times) if times else None
