"""Remembering what depends on the size of a grid only."""
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from ..tracing import is_traced

MAX_BYTES = 2**26


def cached(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorates a pure function of numbers and a device: its last results are kept, 64 MiB at most.

    They are shared by all models and threads of a process and no part of a state dict. Compiled and traced code
    computes them anew, since a compiler folds them into what uses them.
    """
    kept: OrderedDict[tuple, Tensor] = OrderedDict()
    lock = threading.Lock()

    @functools.wraps(function)
    def call(*key: object) -> Tensor:
        if is_traced():
            return function(*key)
        with lock:
            if key in kept:
                kept.move_to_end(key)
                return kept[key]
        # A tensor made in inference mode could not be used in training later.
        with torch.inference_mode(False), torch.no_grad():
            result = function(*key)
        if type(result) is Tensor:  # and no fake one, of a mode that only works out shapes
            with lock:
                kept[key] = result
                while len(kept) > 1 and sum(tensor.nbytes for tensor in kept.values()) > MAX_BYTES:
                    kept.popitem(last=False)
        return result

    call.kept = kept
    return call
