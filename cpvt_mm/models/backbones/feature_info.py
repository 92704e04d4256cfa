"""Channels and strides of a backbone's outputs, in timm's form."""
from typing import Any


class FeatureInfo(list[dict[str, Any]]):
    """A list with one dict for each output.

    The keys of a dict are `num_chs` (channels), `reduction` (stride in pixels) and `module` (name of the stage or block
    that gives the output).
    """

    def channels(self) -> list[int]:
        """Returns the channels of each output."""
        return [info['num_chs'] for info in self]

    def reduction(self) -> list[int]:
        """Returns the stride of each output in pixels."""
        return [info['reduction'] for info in self]
