"""Hooks that report progress and speed of training and testing."""
import statistics
import time
from itertools import pairwise

from mmengine.hooks import Hook
from mmengine.runner import Runner

from cpvt_mm.work import Report


class ReportIterations(Hook):
    """Reports the number of completed iterations and of all iterations, after each iteration of training or testing.

    Args:
        report: Called after every iteration.
        what: The reported activity, such as 'training'.
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
    """Measures the time of a training iteration, including data loading."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: object = None,
                         outputs: object = None) -> None:
        self.ends.append(time.perf_counter())

    def median(self) -> float | None:
        """Returns the median in seconds, which is robust to validation and checkpoints; None before two iterations."""
        times = [end - start for start, end in pairwise(self.ends)]
        return statistics.median(times) if times else None
