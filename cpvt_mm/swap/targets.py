"""The backbones that can be swapped in, and their arguments in place of an old backbone."""
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from cpvt_mm.archs import PLAIN_ARCHS, PlainArch, parse_arch
from cpvt_mm.models import CPVT, PyramidCPVT
from cpvt_mm.models.create import CLASSES
from cpvt_mm.tokens.validation import check_names
from cpvt_mm.zoo.members import RELEASED, SAME, SCHEME, SWAPPED_IN
from openmmlab_tools.errors import UserError

from .map_choice import choose_blocks, choose_stages
from .probing import Maps

Backbone = PyramidCPVT | CPVT
# Arguments about images and training that have the same meaning in other backbones, with their defaults.
SHARED = dict(in_channels=3, img_size=224, with_cp=False)


class Target(NamedTuple):
    """A backbone of this project that can replace other backbones."""
    cls: type[Backbone]
    options: dict[str, Any]  # arguments that new configs set
    arch: str = 'small'  # default `arch`
    checkpoint: str | None = None  # default weights, which require all `options` and `parts`; None: random weights
    parts: Mapping[str, Any] = {}  # fields that differ from the named arch

    def config(self, config: dict[str, Any], old: Maps, is_segmentor: bool, arch: Any) -> dict[str, Any]:
        """Returns the config of the backbone that replaces an old backbone, without weights.

        If both have the same class, arguments stay, except `arch`, weights and `out_indices`. If released weights
        determine the arguments, or the class changes, only SHARED stay.

        Args:
            config: The config of the old backbone.
            old: Its maps.
            is_segmentor: Whether the model is a segmentor of mmseg.
            arch: The `arch` of the new backbone.

        Raises:
            CannotSwap: If the new backbone has no such maps.
        """
        name, is_same_class = config['type'], config['type'].rpartition('.')[2] == self.cls.__name__
        if is_same_class and not self.checkpoint:
            others = {key: value for key, value in config.items()
                      if key not in ('type', 'arch', 'out_indices', 'init_cfg')}
        else:
            shared = {key: config[key] for key, default in SHARED.items() if config.get(key, default) != default}
            others = {**shared, **(self.options if arch != 'nano' else {})}  # too small for stochastic depth
        arch = dict(name=arch, **self.parts) if self.parts else arch
        with torch.device('meta'):
            whole = self.cls(arch=arch, **others)
        if self.cls is CPVT:
            if is_same_class:  # the arch has the number of all blocks; blocks after the last map are not built
                old = old._replace(num_blocks=parse_arch(config.get('arch', 'tiny'), PlainArch, PLAIN_ARCHS).depth)
            indices = choose_blocks(name, old, is_segmentor, whole.strides[0], whole.num_blocks)
        else:
            indices = choose_stages(name, old, is_segmentor)
        if indices != whole.out_indices:
            others['out_indices'] = indices
        return dict(type=f'cpvt_mm.{self.cls.__name__}', arch=arch, **others)


TARGETS = {
    'PyramidCPVT': Target(PyramidCPVT, dict(drop_path_rate=0.2)),
    # Detectors and segmentors use patches only.
    'CPVT': Target(CPVT, dict(drop_path_rate=0.1, cls_token=False)),
    # Released weights have their own arguments. Detectors of PVT have no class token.
    **{name: Target(CLASSES[member.backbone], {'drop_path_rate': 0.1, **member.options}, member.name, SCHEME + name,
                    {key: value for key, value in member.parts.items() if key != 'cls_token'})
       for name, member in RELEASED.items()}}


def build_on_meta(config: dict[str, Any]) -> Backbone:
    """Builds a backbone of this project from its config, without memory for weights."""
    with torch.device('meta'):
        return CLASSES[config['type'].rpartition('.')[2]](
            **{key: value for key, value in config.items() if key not in ('type', 'init_cfg')})


def find_target(backbone: str, arch: object, checkpoint: str | None) -> Target:
    """Returns the target with a name of SWAPPED_IN; for SAME PyramidCPVT.

    Raises a UserError if there is none, or an argument would be ignored, because the backbone determines it.
    """
    check_names('a backbone that can be swapped in', [backbone], (SAME, *SWAPPED_IN), UserError)
    target = TARGETS['PyramidCPVT' if backbone == SAME else backbone]
    if arch is not None and (backbone == SAME or (target.checkpoint and arch != target.arch)):
        raise UserError(f'arch is {arch!r}, but {backbone!r} has its own: leave arch out.')
    if backbone == SAME and checkpoint is not None:
        raise UserError(f'checkpoint is {checkpoint!r}, but {backbone!r} keeps its weights: leave checkpoint out.')
    return target
