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
        model: The model that is called.
        run: The call.
        optim_wrapper: Updates the model in the call. Defaults to None: it does not train, or gets gradients alone.
        is_comparable: Whether it is another implementation of PyramidCPVT, with its weights. Defaults to False.
        has_torch_memory: Whether torch holds its weights, so that its memory can be measured. Defaults to True.
    """
    model: nn.Module
    run: Callable[[], object]
    optim_wrapper: OptimWrapper | None = None
    is_comparable: bool = False
    has_torch_memory: bool = True

    def held_bytes(self) -> int:
        """Counts what it holds between two calls: weights, buffers, and the optimizer's state; no gradients."""
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in self._held()}
        return sum(storages.values())

    def _held(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from self.model.buffers()
        if self.optim_wrapper:
            for state in self.optim_wrapper.optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))


class Subject(Protocol):
    """Builds what is measured of the candidates: the backbones alone, or models around them."""

    device: str

    def step(self, candidate: Candidate, setting: Setting) -> Step:
        """Builds a candidate with what is measured of it.

        Raises:
            CannotMeasure: If it cannot be built.
        """

    def flops(self, candidate: Candidate, setting: Setting) -> int | None:
        """Counts the operations of a call, without those repeated to save memory; None if they cannot be counted."""

    def max_abs_diff(self, step: Step, setting: Setting) -> float | None:
        """Returns how far its outputs are from those of PyramidCPVT; None where they need not be alike."""
