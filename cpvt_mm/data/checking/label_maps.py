"""Checks images with label maps, in ADE20K's layout."""
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .findings import Finding, Kind
from .images import decode, size_as_loaded


@dataclass(frozen=True)
class Labels:
    """The rule by which mmseg converts the values of a label map to classes.

    Attributes:
        num_classes: Classes are 0 to `num_classes - 1`.
        reduce_zero_label: Whether value 0 is ignored, and value 1 is class 0. Defaults to False.
        label_map: Old class -> new class, if only some classes of a dataset are used. Defaults to None.
        ignored: Labels that mean no class. Defaults to 255 only.
    """
    num_classes: int
    reduce_zero_label: bool = False
    label_map: Mapping[int, int] | None = None
    ignored: Collection[int] = (255,)

    def are_known(self, value: int) -> bool:
        """Returns whether a value of a label map is a class, or ignored."""
        label = value
        if self.reduce_zero_label:
            label = 255 if value in (0, 255) else value - 1
        label = (self.label_map or {}).get(label, label)
        return label in self.ignored or 0 <= label < self.num_classes

    def unknown(self, values: Iterable[int]) -> list[int]:
        """Returns the values that are neither a class nor ignored."""
        return [value for value in map(int, values) if not self.are_known(value)]


def check_pair(image_path: str, label_path: str, labels: Labels | None, backend_args: dict[str, Any] | None = None
               ) -> list[Finding]:
    """Finds faults of an image and its label map; if `labels` is None, the map may have any values."""
    image, label_map = decode(image_path, Kind.IMAGE, backend_args), decode(label_path, Kind.LABEL_MAP, backend_args)
    findings = [result for result in (image, label_map) if isinstance(result, Finding)]
    if isinstance(label_map, Finding):
        return findings
    values = np.asarray(label_map).squeeze()
    if values.ndim != 2:
        return [*findings, Finding(Kind.LABEL_MAP, label_path, f'has {values.shape[-1]} channels, but a label map has '
                                   'one')]
    size = values.shape if isinstance(image, Finding) else size_as_loaded(image)
    if values.shape != size:
        findings.append(Finding(Kind.LABEL_MAP_SIZE, label_path, f'is {values.shape[0]} x {values.shape[1]} pixels '
                                f'(height x width), but its image {size[0]} x {size[1]}'))
    unknown = labels.unknown(np.unique(values)) if labels else []
    if labels and unknown:
        findings.append(Finding(Kind.LABEL, label_path, f'has {", ".join(map(str, unknown))}, but there are '
                                f'{labels.num_classes} classes' + (' and 0 is ignored' * labels.reduce_zero_label)))
    return findings
