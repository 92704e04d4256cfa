"""Remembering what depends on the size of a grid only."""
import functools
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

MAX_BYTES = 2**26


def cached(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorates a pure function of numbers and a device: its last results are kept, 64 MiB at most.

    They are shared by all models of a process and no part of a state dict. Compiled code computes them anew, since a
    compiler folds them into what uses them.
    """
    kept: OrderedDict[tuple, Tensor] = OrderedDict()

    @functools.wraps(function)
    def call(*key: object) -> Tensor:
        if torch.compiler.is_compiling():
            return function(*key)
        result = kept.get(key)
        if result is None:
            # A tensor made in inference mode could not be used in training later.
            with torch.inference_mode(False), torch.no_grad():
                result = function(*key)
            kept[key] = result
            while len(kept) > 1 and sum(tensor.nbytes for tensor in kept.values()) > MAX_BYTES:
                kept.popitem(last=False)
        else:
            kept.move_to_end(key)
        return result

    call.kept = kept
    return call
