"""Something to measure that is quick and does as it is told."""
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from lab.candidates import Candidate, CannotMeasure
from lab.steps import Setting, Step

MB = 10**6
SETTING = Setting('forward', 64, 96, 2, 'fp32', 1)


@dataclass(frozen=True)
class Told:
    """A subject whose candidates are named for what they do, or else add some megabytes in a call."""
    device: str = 'cpu'
    call: Callable[[str], object] | None = None  # with the name of a candidate, in its place

    def step(self, candidate: Candidate, setting: Setting) -> Step:
        if candidate.name == 'missing':
            raise CannotMeasure('missing cannot be built.')
        model = nn.Linear(MB, 2, bias=False)  # of 8 MB
        does = dict(fails=self.fail, dies=lambda: os._exit(3), waits=lambda: self.wait(candidate.arguments['file']))
        run = does.get(candidate.name, lambda: torch.ones(candidate.arguments.get('megabytes', 1) * MB // 4))
        if self.call:
            run = partial(self.call, candidate.name)
        return Step(model, run, has_torch_memory=candidate.name != 'elsewhere')

    def flops(self, candidate: Candidate, setting: Setting) -> int:
        return 6 * MB

    def max_abs_diff(self, step: Step, setting: Setting) -> float:
        return 0.25

    @staticmethod
    def fail() -> None:
        raise ValueError('it is told to\nand does so')

    @staticmethod
    def wait(file: str) -> None:
        Path(file).write_text(str(os.getpid()))
        time.sleep(100)
