"""A cache for tensors that depend on the grid size only."""
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from ..grid import is_traced

MAX_BYTES = 2**26


class Cached:
    """Wraps a pure function of numbers and a device, and caches its latest results, at most 64 MiB or one result.

    All models and threads of a process share the results; state dicts do not contain them. Compiled and traced code
    does not use the cache, because the compiler fuses the function into the code that uses it.

    Args:
        function: The function; it returns a tensor.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.kept: OrderedDict[tuple[Hashable, ...], Tensor] = OrderedDict()
        self.lock = threading.Lock()

    def __call__(self, *key: Any) -> Tensor:
        if is_traced():
            return self.function(*key)
        with self.lock:
            if key in self.kept:
                self.kept.move_to_end(key)
                return self.kept[key]
        # A tensor made in inference mode could not be used in training later.
        with torch.inference_mode(False), torch.no_grad():
            result = self.function(*key)
        if type(result) is Tensor:  # not a FakeTensor, which has a shape but no data
            with self.lock:
                self.kept[key] = result
                while len(self.kept) > 1 and sum(tensor.nbytes for tensor in self.kept.values()) > MAX_BYTES:
                    self.kept.popitem(last=False)
        return result


cached = Cached  # as a decorator
