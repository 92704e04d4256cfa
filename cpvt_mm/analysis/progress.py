"""How far a training or test is."""
from collections.abc import Callable

from mmengine.hooks import Hook
from mmengine.runner import Runner


class ReportIterations(Hook):
    """Calls back after every iteration of training or testing, with the number done and that there are."""

    def __init__(self, callback: Callable[[int, int], None]) -> None:
        self.callback = callback

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: object = None,
                         outputs: object = None) -> None:
        self.callback(runner.iter + 1, runner.max_iters)

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: object = None,
                        outputs: object = None) -> None:
        self.callback(batch_idx + 1, len(runner.test_dataloader))
