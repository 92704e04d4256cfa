"""Times calls in turns."""
import random
from collections.abc import Callable, Mapping

from torch.utils.benchmark import timer

Call = Callable[[], object]


def seconds(call: Call) -> float:
    """Times one call in seconds, including the work that it starts on an accelerator.

    torch's `Timer.timeit` is not used, because it makes two additional calls each time to warm up.
    """
    start = timer()
    call()
    return timer() - start


def interleave(calls: Mapping[str, Call], rounds: int, warmup: int,
               on_round: Callable[[int], None]) -> dict[str, list[float]]:
    """Times each call once per round, in a random order, so that noise affects all calls alike.

    Args:
        calls: Calls by name.
        rounds: Number of timed rounds.
        warmup: Number of untimed rounds before them.
        on_round: Called after each timed round, with the number of completed timed rounds.

    Returns:
        Name -> seconds of each round.
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
