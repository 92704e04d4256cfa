"""A model with the measured call."""
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from mmengine.optim import OptimWrapper
from torch import Tensor, nn

from .candidates import Candidate
from .settings import Setting


@dataclass(frozen=True)
class Step:
    """A repeatable forward pass or training step.

    Attributes:
        model: The model that is called.
        run: The call.
        optim_wrapper: The optimizer that updates the model in the call. Defaults to None: no update.
        is_comparable: Whether the outputs can be compared with PyramidCPVT's, because the weights are the same.
            Defaults to False.
        has_torch_memory: Whether torch holds the weights, so that memory can be measured. Defaults to True.
    """
    model: nn.Module
    run: Callable[[], object]
    optim_wrapper: OptimWrapper | None = None
    is_comparable: bool = False
    has_torch_memory: bool = True

    def held_bytes(self) -> int:
        """Returns the bytes of weights, buffers and optimizer state, which stay between two calls; not of gradients."""
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in self._held()}
        return sum(storages.values())

    def _held(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from self.model.buffers()
        if self.optim_wrapper:
            for state in self.optim_wrapper.optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))


class Subject(Protocol):
    """Builds the measured models: the backbones alone, or whole models with them."""

    device: str

    def step(self, candidate: Candidate, setting: Setting) -> Step:
        """Builds a candidate and its measured call.

        Raises:
            CannotMeasure: If the candidate cannot be built.
        """

    def flops(self, candidate: Candidate, setting: Setting) -> int | None:
        """Counts the operations of a call, without recomputation; None if they cannot be counted."""

    def max_abs_diff(self, step: Step, setting: Setting) -> float | None:
        """Returns the largest difference to the outputs of PyramidCPVT; None if the outputs are not comparable."""
