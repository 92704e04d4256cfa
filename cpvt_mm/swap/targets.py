"""The backbones that can be swapped in, which of their maps replace those of an old one, and their optimizer."""
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from torch import nn

from cpvt_mm.archs import PLAIN_ARCHS, STRIDES, PlainArch, parse_arch
from cpvt_mm.models import CPVT, PyramidCPVT
from cpvt_mm.models.create import CLASSES
from cpvt_mm.zoo.members import RELEASED, SCHEME
from openmmlab_tools.config_walk import dicts

from .probing import CannotSwap, Maps

Backbone = PyramidCPVT | CPVT
# Arguments about images and training that have the same meaning in other backbones, with their defaults.
KEPT = dict(in_channels=3, img_size=224, with_cp=False)


class Target(NamedTuple):
    """A backbone of this project that can replace others."""
    cls: type[Backbone]
    options: dict[str, Any]  # arguments that new configs set
    arch: str = 'small'  # default `arch`
    checkpoint: str | None = None  # default weights, which need all of `options` and `parts`; None: random
    parts: Mapping[str, Any] = {}  # fields of the arch that differ from those of its name

    def arguments(self, config: dict[str, Any], old: Maps, scope: str | None, arch: Any) -> dict[str, Any]:
        """Returns the arguments, with `arch`, of the backbone that replaces that of a config.

        If the old one has the same class, its arguments are kept (with a checkpoint, only KEPT), except `arch`, weights
        and `out_indices`. Raises CannotSwap if the new backbone has no such maps.
        """
        if _is_of(self.cls, config) and not self.checkpoint:
            others = {key: value for key, value in config.items()
                      if key not in ('type', 'arch', 'out_indices', 'init_cfg')}
        else:
            kept = {key: config[key] for key, default in KEPT.items() if config.get(key, default) != default}
            others = {**kept, **(self.options if arch != 'nano' else {})}  # too small for stochastic depth
        arch = dict(name=arch, **self.parts) if self.parts else arch
        with torch.device('meta'):
            whole = self.cls(arch=arch, **others)
        indices = (choose_blocks if self.cls is CPVT else choose_stages)(config, old, scope, whole)
        if indices != whole.out_indices:
            others['out_indices'] = indices
        return dict(arch=arch, **others)

    def adapt_neck(self, neck: dict[str, Any]) -> None:
        """Replaces mmdet's `SimpleFPN` by `SimpleFeaturePyramid`, in place; raises CannotSwap if a pyramid has it."""
        if neck['type'].rpartition('.')[2] != 'SimpleFPN' or 'backbone_channel' not in neck:
            return
        if self.cls is not CPVT:
            raise CannotSwap(f'its neck {neck["type"]} makes a pyramid of the map of a plain transformer: take CPVT '
                             'instead of PyramidCPVT.')
        new = dict(type='cpvt_mm.SimpleFeaturePyramid', in_channels=neck['backbone_channel'],
                   out_channels=neck['out_channels'], num_outs=neck['num_outs'])
        neck.clear()
        neck.update(new)


def _is_of(cls: type[Backbone], config: dict[str, Any]) -> bool:
    """Returns whether the config of a backbone has a class as its type."""
    return config['type'].rpartition('.')[2] == cls.__name__


def choose_stages(config: dict[str, Any], old: Maps, scope: str | None, whole: Backbone) -> tuple[int, ...]:
    """Chooses the stages of the pyramid, counted from 0, that replace the maps of a backbone.

    With dilation, a detector gets the stage of the same stride, which its anchors need, and a segmentor that of the
    same number, for its receptive field. Without, they are the same.
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
    num_blocks = (parse_arch(config.get('arch', 'tiny'), PlainArch, PLAIN_ARCHS).depth if _is_of(CPVT, config)
                  else old.num_blocks)
    if old.out_indices and num_blocks and set(old.out_indices) <= set(range(num_blocks)):
        return blocks_by_depth(sorted(old.out_indices), num_blocks, whole.num_blocks)
    if len(strides) > 1:
        raise CannotSwap(f'its backbone {name} returns {len(strides)} maps, but does not state which blocks they '
                         'come from (it needs out_indices, and a list of blocks that is called layers or blocks).')
    return whole.out_indices


def blocks_by_depth(indices: Sequence[int], num_blocks: int, new_num_blocks: int) -> tuple[int, ...]:
    """Chooses blocks of a new transformer at the same relative depths as blocks of an old one, in increasing order.

    The relative depth of block i, counted from 0, is (i + 1) / num_blocks. The new block is the first one of at least
    the same. If two old blocks give the same new block, the later one moves to the next free block.

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


def _list(values: Sequence[int]) -> str:
    return ', '.join(map(str, values))


# The optimizers of schedules. For detectors, they are from the original's 1x schedule on COCO
# and from ViTDet; for segmentors, from Swin's schedule on ADE20K.
OF_SEGMENTORS = dict(type='AdamW', lr=6e-5, weight_decay=0.01, fused=True)
OF_DETECTORS = {PyramidCPVT: dict(type='AdamW', lr=2e-4, weight_decay=1e-4, fused=True),
                CPVT: dict(type='AdamW', lr=1e-4, weight_decay=0.1, fused=True)}
TARGETS = {
    'PyramidCPVT': Target(PyramidCPVT, dict(drop_path_rate=0.2)),
    # Detectors and segmentors use patches only.
    'CPVT': Target(CPVT, dict(drop_path_rate=0.1, cls_token=False)),
    # Released weights have their own arguments. Detectors of PVT have no class token.
    **{name: Target(CLASSES[member.backbone], {'drop_path_rate': 0.1, **member.options}, member.name, SCHEME + name,
                    {key: value for key, value in member.parts.items() if key != 'cls_token'})
       for name, member in RELEASED.items()}}

# Optimizer constructors of mmdet and mmseg that know the names of parameters of a few backbones only.
LAYER_DECAY = ('LearningRateDecayOptimizerConstructor', 'LayerDecayOptimizerConstructor')
# No weight decay on position encodings and norms, as in the configs of this project.
DECAY_RULES = {'position_encoding': dict(decay_mult=0.), 'norm': dict(decay_mult=0.)}
# Total batch size that the learning rates of this project's schedules are for.
BATCH_SIZE = 16
# Names of position tables and encodings in backbones of the libraries.
POSITION_KEYS = ('absolute_pos_embed', 'relative_position_bias_table', 'pos_embed', 'pos_block', 'position_encodings')
# Learnt tokens of plain transformers.
TOKEN_KEYS = ('cls_token', 'mask_token')


def translate_custom_keys(keys: dict[str, Any], backbone: nn.Module) -> dict[str, Any]:
    """Translates `custom_keys` for norms and position tables; drops others of the old backbone that match nothing."""
    names = [f'backbone.{name}' for name, _ in backbone.named_parameters()]
    translated = {}
    for key, value in keys.items():
        if key in POSITION_KEYS:
            if any('position_encoding' in name for name in names):
                translated['position_encoding'] = value
        elif key.startswith('backbone.') and 'norm' in key:
            translated |= dict.fromkeys(_norm_keys(backbone), value)
        elif not (key.startswith('backbone.') or key in TOKEN_KEYS) or any(key in name for name in names):
            translated[key] = value
    return translated


def _norm_keys(backbone: nn.Module) -> list[str]:
    """Returns a minimal list of keys that match all norms of the backbone, but no parameter of a head."""
    names = [f'backbone.{name}' for name, module in backbone.named_modules() if isinstance(module, nn.LayerNorm)]
    return list(dict.fromkeys(next((part for part in ('patch_embed.norm', 'attn.sr.norm') if name.endswith(part)),
                                   name.rstrip('0123456789')) for name in names))


def adapt_optimizer(wrapper: dict[str, Any], backbone: nn.Module) -> None:
    """Changes rules of `optim_wrapper` for the new backbone, in place; layer-wise decay stays for `CPVT` only."""
    paramwise = wrapper.get('paramwise_cfg') or {}
    if (wrapper.get('constructor') or '').rpartition('.')[2] in LAYER_DECAY:
        # Layer-wise decay also exempts norms and biases from weight decay; that part is kept.
        wrapper['paramwise_cfg'] = dict(custom_keys=dict(DECAY_RULES))
        del wrapper['constructor']
        if isinstance(backbone, CPVT):
            wrapper['constructor'] = CPVT.layer_decay_constructor
            rate = paramwise.get('layer_decay_rate', paramwise.get('decay_rate'))  # mmseg has both names
            wrapper['paramwise_cfg']['layer_decay_rate'] = rate
    elif paramwise.get('custom_keys'):
        paramwise['custom_keys'] = translate_custom_keys(paramwise['custom_keys'], backbone)


def set_optimizer(cfg: Config, backbone: Backbone) -> None:
    """Sets AdamW with the project's rules for the config's scope, in place.

    An existing AdamW keeps its learning rate. For another optimizer, `eta_min` of schedulers is scaled with it.
    """
    if not cfg.get('optim_wrapper'):
        cfg.optim_wrapper = dict(type='OptimWrapper')
    wrapper = cfg.optim_wrapper
    old = wrapper.get('optimizer') or {}
    if old.get('type') != 'AdamW':
        new = wrapper['optimizer'] = dict(
            OF_SEGMENTORS if cfg.get('default_scope') == 'mmseg' else OF_DETECTORS[type(backbone)])
        for scheduler in dicts(cfg.get('param_scheduler')):
            if scheduler.get('eta_min') and old.get('lr'):
                scheduler['eta_min'] *= new['lr'] / old['lr']
        if cfg.get('auto_scale_lr'):
            cfg.auto_scale_lr['base_batch_size'] = BATCH_SIZE
    paramwise = wrapper.get('paramwise_cfg') or {}
    keys = paramwise.get('custom_keys') or {}
    rules = dict(DECAY_RULES)
    if 'backbone' in keys:
        # mmengine applies only the longest matching key to a name.
        exempt = {**keys['backbone'], 'decay_mult': 0.}
        rules |= dict.fromkeys(['position_encoding', *_norm_keys(backbone)], exempt)
    wrapper['paramwise_cfg'] = {**paramwise, 'custom_keys': {**rules, **keys}}
