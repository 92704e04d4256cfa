"""Channels and strides of a backbone's outputs, in timm's form."""
from typing import Any


class FeatureInfo(list[dict[str, Any]]):
    """One dict for each output.

    Its keys are `num_chs` (channels), `reduction` (stride in pixels) and `module` (name of the stage or block that
    gives the output).
    """

    def channels(self) -> list[int]:
        return [info['num_chs'] for info in self]

    def reduction(self) -> list[int]:
        return [info['reduction'] for info in self]
