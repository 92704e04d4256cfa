"""Workers of data loaders that end with the process that started them."""
from collections.abc import Callable
from dataclasses import dataclass

from cpvt_mm.processes import end_with_parent


@dataclass(frozen=True)
class WorkerInit:
    """The first call in a worker of a data loader.

    Attributes:
        inner: The `worker_init_fn` of the loader; None if it has none.
    """
    inner: Callable[[int], object] | None

    def __call__(self, worker: int) -> None:
        end_with_parent()
        if self.inner:
            self.inner(worker)
