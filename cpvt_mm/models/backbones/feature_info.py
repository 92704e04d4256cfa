"""Channels and strides of a backbone's outputs, in the form that users of timm know."""
from typing import Any


class FeatureInfo(list[dict[str, Any]]):
    """One dict for each output.

    Its keys are `num_chs` (channels), `reduction` (pixels a cell spans per side) and `module` (the name of the stage or
    block that the output comes from).
    """

    def channels(self) -> list[int]:
        return [info['num_chs'] for info in self]

    def reduction(self) -> list[int]:
        return [info['reduction'] for info in self]
