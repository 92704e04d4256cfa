"""A hook that saves a checkpoint when a run is asked to end."""
import os
import signal
import threading
from types import FrameType
from typing import Any

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.runner import Runner

from cpvt_mm.processes import ASK_TO_END
from cpvt_mm.registry import HOOKS

from .checkpoint import DurableCheckpointHook


@HOOKS.register_module()
class SaveOnSignalHook(Hook):
    """Ends training after SIGTERM or SIGUSR1 with a checkpoint of the last whole iteration.

    If one rank gets the signal, all end after the same iteration. `DurableCheckpointHook` saves, and the processes exit
    with status 128 + the number of the signal, which is 143 for SIGTERM. A validation is finished first. Without
    `DurableCheckpointHook`, or outside the main thread, signals have their usual effect.
    """

    priority = 'BELOW_NORMAL'  # before NonFiniteLossHook, which checks the model that will be saved

    def before_train(self, runner: Runner) -> None:
        self.number, self.process = 0, os.getpid()
        self.saving = [hook for hook in runner.hooks if isinstance(hook, DurableCheckpointHook)]
        if self.saving and threading.current_thread() is threading.main_thread():
            for number in ASK_TO_END:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        if os.getpid() != self.process:  # a worker of a data loader, which has inherited this function
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        number = torch.tensor(self.number)
        all_reduce(number, 'max')
        if number and self.saving:
            self.saving[0].end_status = 128 + int(number)
