"""Channels, strides and names of the outputs of a backbone, in the form of timm's."""
from collections.abc import Sequence
from typing import Any


class FeatureInfo(list[dict[str, Any]]):
    """A list with one dict for each output, in the form of timm's `FeatureInfo`.

    The keys of a dict are `num_chs` (channels), `reduction` (stride in pixels), `module` (name of the stage or block
    that gives the output) and `index` (index of that stage or block).
    """

    @property
    def info(self) -> list[dict[str, Any]]:
        """The list itself."""
        return self

    @property
    def out_indices(self) -> tuple[int, ...]:
        """The indices of the outputs in this list, all of them."""
        return tuple(range(len(self)))

    def get_dicts(self, keys: Sequence[str] | None = None, out_indices: Sequence[int] | None = None
                  ) -> list[dict[str, Any]]:
        """Returns the dicts of some outputs with some keys; of all outputs with all keys if they are None."""
        chosen = self if out_indices is None else [self[index] for index in out_indices]
        return [{key: info[key] for key in keys or info} for info in chosen]

    def channels(self, idx: int | None = None) -> Any:
        """Returns the channels of each output, or of one."""
        return self._get('num_chs', idx)

    def reduction(self, idx: int | None = None) -> Any:
        """Returns the stride of each output in pixels, or of one."""
        return self._get('reduction', idx)

    def module_name(self, idx: int | None = None) -> Any:
        """Returns the name of the stage or block of each output, or of one."""
        return self._get('module', idx)

    def _get(self, key: str, idx: int | None) -> Any:
        values = [info[key] for info in self]
        return values if idx is None else values[idx]


def last_of(count: int, number: int) -> range:
    """Returns the indices of the last `number` of `count` outputs; raises an IndexError if there are none or fewer."""
    if not 1 <= number <= count:
        raise IndexError(f'the number of last maps is {number}, but must be from 1 to {count}.')
    return range(count - number, count)
