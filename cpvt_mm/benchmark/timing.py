"""Seconds that calls take, in turns."""
import random
from collections.abc import Callable, Mapping

from torch.utils.benchmark import timer

Call = Callable[[], object]


def seconds(call: Call) -> float:
    """Times one call, with all that it starts on an accelerator.

    Not by torch's `Timer.timeit`, which makes two more calls each time to warm up.
    """
    start = timer()
    call()
    return timer() - start


def interleave(calls: Mapping[str, Call], rounds: int, warmup: int,
               on_round: Callable[[int], None]) -> dict[str, list[float]]:
    """Times calls, each once a round, so that noise hits all alike; in every round in another order.

    Args:
        calls: By name.
        rounds: Rounds that count.
        warmup: Rounds before these.
        on_round: Called after each round that counts, with the number of these.

    Returns:
        Seconds of each round, by name.
    """
    order = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(-warmup, rounds):
        for name in order.sample(list(calls), len(calls)):
            taken = seconds(calls[name])
            if index >= 0:
                found[name].append(taken)
        if index >= 0:
            on_round(index + 1)
    return found
