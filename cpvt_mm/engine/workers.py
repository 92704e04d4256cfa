"""Makes data loader workers end with the process that started them."""
from collections.abc import Callable
from dataclasses import dataclass

from cpvt_mm.processes import end_with_parent


@dataclass(frozen=True)
class WorkerInit:
    """A `worker_init_fn`: makes the worker end with its parent process, then calls the loader's own function.

    Attributes:
        inner: The `worker_init_fn` of the loader; None if it has none.
    """
    inner: Callable[[int], object] | None

    def __call__(self, worker: int) -> None:
        end_with_parent()
        if self.inner:
            self.inner(worker)
