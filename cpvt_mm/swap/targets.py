"""The backbones that can be swapped in, with the settings for each."""
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar

import torch

from cpvt_mm.models import CPVT, PyramidCPVT

from .probing import ProbedBackbone

# Arguments about images and training that have the same meaning in other backbones, with their defaults.
KEPT = dict(in_channels=3, img_size=224, with_cp=False)


class Target(ABC):
    """A backbone of this project that can replace others.

    Attributes:
        cls: Its class.
        archs: The names of its archs.
        options: Arguments that new configs set.
        optimizers: The optimizers of its schedules, by the scope of a config.
    """
    cls: ClassVar[type[PyramidCPVT] | type[CPVT]]
    archs: ClassVar[Collection[str]]
    options: ClassVar[dict[str, Any]]
    optimizers: ClassVar[dict[str, dict[str, Any]]]

    @abstractmethod
    def choose_outputs(self, config: dict[str, Any], old: ProbedBackbone, scope: str | None,
                       whole: PyramidCPVT | CPVT) -> tuple[int, ...]:
        """Chooses the `out_indices` that replace the maps of the old backbone.

        Args:
            config: The config of the old backbone.
            old: The maps of the old backbone.
            scope: The scope of the config: 'mmseg', or any other.
            whole: The new backbone with its default `out_indices`.

        Raises:
            CannotSwap: If the new backbone has no such maps.
        """

    @abstractmethod
    def adapt_neck(self, neck: dict[str, Any]) -> None:
        """Replaces a first neck that does not read a sequence of maps, in place.

        Raises:
            CannotSwap: If the neck is for another kind of backbone.
        """

    def is_in(self, config: dict[str, Any]) -> bool:
        """Returns whether the config of a backbone has this class as its type."""
        return config['type'].rpartition('.')[2] == self.cls.__name__

    def arguments(self, config: dict[str, Any], old: ProbedBackbone, scope: str | None, arch: Any) -> dict[str, Any]:
        """Returns the arguments of the backbone that replaces another one.

        If the old backbone has the same class, its arguments are kept, except `arch`, weights and `out_indices`.

        Args:
            config: The config of the old backbone.
            old: The maps of the old backbone.
            scope: The scope of the config.
            arch: The `arch` of the new backbone.

        Raises:
            CannotSwap: If the new backbone has no such maps.
            ValueError: If `arch` is unknown.
        """
        if self.is_in(config):
            others = {key: value for key, value in config.items()
                      if key not in ('type', 'arch', 'out_indices', 'init_cfg')}
        else:
            others = {**self.options, **{key: config[key] for key, default in KEPT.items()
                                         if config.get(key, default) != default}}
        with torch.device('meta'):
            whole = self.cls(arch=arch, **others)
        indices = self.choose_outputs(config, old, scope, whole)
        if indices != whole.out_indices:
            others['out_indices'] = indices
        return dict(arch=arch, **others)
