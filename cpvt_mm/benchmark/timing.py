"""Seconds that calls take, in turns."""
import random
import time
from collections.abc import Callable, Mapping

import torch

Call = Callable[[], object]


def cpu_seconds(call: Call) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cuda_seconds(call: Call) -> float:
    """What passes on the GPU's clock with a call, from the first kernel to the last."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


CLOCKS = {'cpu': cpu_seconds, 'cuda': cuda_seconds}


def interleave(calls: Mapping[str, Call], rounds: int, warmup: int, clock: Callable[[Call], float],
               on_round: Callable[[int], None]) -> dict[str, list[float]]:
    """Times calls, each once a round, so that noise hits all alike; in every round in another order.

    Args:
        calls: By name.
        rounds: That count.
        warmup: Rounds before these.
        clock: What times a call.
        on_round: Called after each round that counts, with the number of these.

    Returns:
        Seconds of each round, by name.
    """
    order = random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(-warmup, rounds):
        for name in order.sample(list(calls), len(calls)):
            taken = clock(calls[name])
            if index >= 0:
                seconds[name].append(taken)
        if index >= 0:
            on_round(index + 1)
    return seconds
