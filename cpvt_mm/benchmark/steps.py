"""A model with the call that is measured."""
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from mmengine.optim import OptimWrapper
from torch import Tensor, nn

from .candidates import Candidate
from .settings import Setting


@dataclass(frozen=True)
class Step:
    """One forward pass or one step of training, again and again.

    Attributes:
        model: That is called.
        run: The call.
        optim_wrapper: What it trains with. Defaults to None.
        is_comparable: Whether it is another implementation of PyramidCPVT, with its weights. Defaults to False.
    """
    model: nn.Module
    run: Callable[[], object]
    optim_wrapper: OptimWrapper | None = None
    is_comparable: bool = False

    def held_bytes(self) -> int:
        """What it holds between two calls: weights, buffers, and what the optimizer keeps; gradients are none."""
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in self._held()}
        return sum(storages.values())

    def _held(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from self.model.buffers()
        if self.optim_wrapper:
            for state in self.optim_wrapper.optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))


class Subject(Protocol):
    """What the candidates are measured as: alone, or as a part of a model."""

    device: str

    def step(self, candidate: Candidate, setting: Setting) -> Step:
        """Builds a candidate with what is measured of it.

        Raises:
            CannotMeasure: If it cannot be built.
        """

    def flops(self, candidate: Candidate, setting: Setting) -> int | None:
        """Operations of a call, without those that are done again to save memory; None if they cannot be counted."""

    def max_abs_diff(self, step: Step, setting: Setting) -> float | None:
        """How far its outputs are from those of PyramidCPVT; None where they need not be alike."""
