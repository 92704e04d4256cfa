"""The backbones that can be swapped in, and the maps of theirs that replace those of an old backbone."""
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cpvt_mm.models import CPVT, PLAIN_ARCHS, PYRAMID_ARCHS, PyramidCPVT
from cpvt_mm.models.cpvt import PlainArch
from cpvt_mm.models.create import BACKBONES, list_backbones
from cpvt_mm.models.pyramid_cpvt import STRIDES
from cpvt_mm.models.validation import parse_arch
from cpvt_mm.weights.released import SCHEME

from .probing import CannotSwap, Maps

Backbone = PyramidCPVT | CPVT
# Arguments about images and training that have the same meaning in other backbones, with their defaults.
KEPT = dict(in_channels=3, img_size=224, with_cp=False)


@dataclass(frozen=True)
class Target:
    """A backbone of this project that can replace others.

    Attributes:
        cls: Its class.
        archs: The names of its archs.
        options: Returns the arguments that new configs set, for an `arch`.
        optimizers: The optimizers of its schedules, by the scope of a config.
        choose_outputs: Chooses the `out_indices` that replace the maps of an old backbone, from its config, its maps,
            the scope of the config ('mmseg', or any other), and the new backbone with its default `out_indices`.
            Raises CannotSwap if the new backbone has no such maps.
        adapt_neck: Replaces a first neck that does not read a sequence of maps, in place. Raises CannotSwap if the neck
            is for another kind of backbone.
        arch: The default `arch`. Defaults to 'small'.
        checkpoint: The default weights. They need all of `options`. Defaults to None: random weights.
    """
    cls: type[Backbone]
    archs: Collection[str]
    options: Callable[[Any], dict[str, Any]]
    optimizers: dict[str, dict[str, Any]]
    choose_outputs: Callable[[dict[str, Any], Maps, str | None, Backbone], tuple[int, ...]]
    adapt_neck: Callable[[dict[str, Any]], None]
    arch: str = 'small'
    checkpoint: str | None = None

    def is_in(self, config: dict[str, Any]) -> bool:
        """Returns whether the config of a backbone has this class as its type."""
        return config['type'].rpartition('.')[2] == self.cls.__name__

    def arguments(self, config: dict[str, Any], old: Maps, scope: str | None, arch: Any) -> dict[str, Any]:
        """Returns the arguments, with `arch`, of the backbone that replaces that of a config.

        If the old backbone has the same class, its arguments are kept, except `arch`, weights and `out_indices`. A
        target with weights keeps only KEPT.

        Raises:
            CannotSwap: If the new backbone has no such maps.
            ValueError: If `arch` is unknown.
        """
        if self.is_in(config) and not self.checkpoint:
            others = {key: value for key, value in config.items()
                      if key not in ('type', 'arch', 'out_indices', 'init_cfg')}
        else:
            kept = {key: config[key] for key, default in KEPT.items() if config.get(key, default) != default}
            others = {**kept, **self.options(arch)}
        with torch.device('meta'):
            whole = self.cls(arch=arch, **others)
        indices = self.choose_outputs(config, old, scope, whole)
        if indices != whole.out_indices:
            others['out_indices'] = indices
        return dict(arch=arch, **others)


def choose_stages(config: dict[str, Any], old: Maps, scope: str | None, whole: Backbone) -> tuple[int, ...]:
    """Chooses the stages of the pyramid, counted from 0, that replace the maps of a backbone.

    Without dilation, the map of stage i has the stride of the pyramid's stage i. With dilation, the stride is smaller,
    and the choice depends on the model:

    - A detector gets the stage of the same stride, which its anchors need.
    - A segmentor gets the stage of the same number. It takes any stride, and needs the receptive field of the last
      stage.
    """
    stages = _find_stages(old, scope)
    if not stages:
        other = ': take CPVT instead of PyramidCPVT' if set(old.strides) == {16} else ''
        raise CannotSwap(f'its backbone {config["type"]} returns maps of strides {_list(old.strides)}, but a '
                         f'pyramid of four stages has one each of {_list(STRIDES)}{other}.')
    return stages


def _find_stages(old: Maps, scope: str | None) -> tuple[int, ...]:
    """Returns the stages for `choose_stages`; empty if the maps are not those of a pyramid."""
    strides, numbers = list(old.strides), tuple(range(len(STRIDES)))
    if scope == 'mmseg' and strides == sorted(strides) and set(strides) <= set(STRIDES):
        if len(strides) == len(numbers) and strides[0] == STRIDES[0]:
            return numbers
        if old.out_indices and old.out_indices == tuple(i for i in numbers if i in old.out_indices):
            return old.out_indices
    stages = tuple(i for i in numbers if STRIDES[i] in strides)
    return stages if strides == [STRIDES[i] for i in stages] else ()


def choose_blocks(config: dict[str, Any], old: Maps, scope: str | None, whole: Backbone) -> tuple[int, ...]:
    """Chooses the blocks of CPVT that replace the maps of a plain transformer, see `blocks_by_depth`."""
    name, strides = config['type'], old.strides
    # Segmentors resize their logits to the image, so that they also take patches of 14 pixels.
    if set(strides) != set(whole.strides) and not (scope == 'mmseg' and set(strides) == {16}):
        other = (': take PyramidCPVT instead of CPVT, or a config with SimpleFeaturePyramid, as in configs/cpvt and '
                 'configs/dino' if _find_stages(old, scope) else '')
        raise CannotSwap(f'its backbone {name} returns maps of strides {_list(strides)}, but CPVT of stride '
                         f'{whole.strides[0]} only{other}.')
    if len(strides) > whole.num_blocks:
        raise CannotSwap(f'its backbone {name} returns {len(strides)} maps, but this arch of CPVT has '
                         f'{whole.num_blocks} blocks.')
    # CPVT does not build blocks after the last returned block, so the number comes from its arch.
    num_blocks = (parse_arch(config.get('arch', 'tiny'), PlainArch, PLAIN_ARCHS).depth if PLAIN.is_in(config)
                  else old.num_blocks)
    if old.out_indices and num_blocks and set(old.out_indices) <= set(range(num_blocks)):
        return blocks_by_depth(sorted(old.out_indices), num_blocks, whole.num_blocks)
    if len(strides) > 1:
        raise CannotSwap(f'its backbone {name} returns {len(strides)} maps, but does not state which blocks they '
                         'come from (it needs out_indices, and a list of blocks that is called layers or blocks).')
    return whole.out_indices


def blocks_by_depth(indices: Sequence[int], num_blocks: int, new_num_blocks: int) -> tuple[int, ...]:
    """Chooses blocks of a new transformer at the same relative depths as blocks of an old one.

    `indices` are in increasing order, and so is the result. `new_num_blocks` is at least their number.

    The relative depth of block i, counted from 0, is (i + 1) / num_blocks. The new block is the first one of at least
    the same relative depth, so the last block replaces the last block. If two old blocks give the same new block, the
    later one moves to the next free block.

    Examples:
        >>> blocks_by_depth([5, 11, 17, 23], 24, 12)
        (2, 5, 8, 11)
    """
    blocks: list[int] = []
    for following, index in zip(reversed(range(len(indices))), indices, strict=True):
        same_share = -(-(index + 1) * new_num_blocks // num_blocks) - 1
        after_previous = blocks[-1] + 1 if blocks else 0
        blocks.append(min(max(same_share, after_previous), new_num_blocks - 1 - following))
    return tuple(blocks)


def _is_vitdet_neck(neck: dict[str, Any]) -> bool:
    """Returns whether a neck is `SimpleFPN` of mmdet's ViTDet project, which reads one map instead of a sequence."""
    return neck['type'].rpartition('.')[2] == 'SimpleFPN' and 'backbone_channel' in neck


def _refuse_vitdet_neck(neck: dict[str, Any]) -> None:
    if _is_vitdet_neck(neck):
        raise CannotSwap(f'its neck {neck["type"]} makes a pyramid of the map of a plain transformer: take CPVT '
                         'instead of PyramidCPVT.')


def _replace_vitdet_neck(neck: dict[str, Any]) -> None:
    """Replaces ViTDet's neck by `SimpleFeaturePyramid`, which is equivalent but reads a sequence of maps."""
    if _is_vitdet_neck(neck):
        new = dict(type='cpvt_mm.SimpleFeaturePyramid', in_channels=neck['backbone_channel'],
                   out_channels=neck['out_channels'], num_outs=neck['num_outs'])
        neck.clear()
        neck.update(new)


def _list(values: Sequence[int]) -> str:
    return ', '.join(map(str, values))


# The optimizers are from the original's 1x schedule on COCO, and from Swin's schedule on ADE20K. Nano is too small for
# stochastic depth.
PYRAMID = Target(
    PyramidCPVT, tuple(PYRAMID_ARCHS), options=lambda arch: {} if arch == 'nano' else dict(drop_path_rate=0.2),
    optimizers=dict(mmdet=dict(type='AdamW', lr=2e-4, weight_decay=1e-4),
                    mmseg=dict(type='AdamW', lr=6e-5, weight_decay=0.01)),
    choose_outputs=choose_stages, adapt_neck=_refuse_vitdet_neck)
# Detectors and segmentors use patches only. The optimizers are from ViTDet, and from Swin's schedule on ADE20K.
PLAIN = Target(
    CPVT, tuple(PLAIN_ARCHS), options=lambda arch: dict(drop_path_rate=0.1, cls_token=False),
    optimizers=dict(mmdet=dict(type='AdamW', lr=1e-4, weight_decay=0.1),
                    mmseg=dict(type='AdamW', lr=6e-5, weight_decay=0.01)),
    choose_outputs=choose_blocks, adapt_neck=_replace_vitdet_neck)


def _named(name: str) -> Target:
    """Returns the target of released weights: `CPVT` with their arguments."""
    _, arch, options = BACKBONES[name]
    return replace(PLAIN, archs=(arch,), options=lambda arch: dict(drop_path_rate=0.1, **options), arch=arch,
                   checkpoint=SCHEME + name)


TARGETS = {'PyramidCPVT': PYRAMID, 'CPVT': PLAIN,
           **{name: _named(name) for name in list_backbones(pretrained=True) if BACKBONES[name][0] is CPVT}}
