"""Tells readers how far long computations are."""
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TypeVar

from openmmlab_tools.errors import show

SECONDS = 5  # between two lines
Item = TypeVar('Item')


def watched(items: Sequence[Item], text: str) -> Iterator[Item]:
    """Yields items, and logs how many are done every `SECONDS`: nothing if all are done before."""
    last = monotonic()
    for done, item in enumerate(items):
        if monotonic() - last > SECONDS:
            show(f'{text}: {done} of {len(items)} done.')
            last = monotonic()
        yield item
