"""Replaces the backbone of a config by a backbone of this project."""
import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.logging import print_log

from cpvt_mm.models import CPVT
from cpvt_mm.zoo.families import find_released
from cpvt_mm.zoo.members import IMAGENET, SAME
from openmmlab_tools.checkpoints.loading import bands_loader
from openmmlab_tools.config_walk import walk
from openmmlab_tools.registry import in_scope

from .channels import adapt_channels
from .optimizer import adapt_optimizer, set_optimizer
from .probing import CannotSwap, Maps, probe_backbone
from .same import is_recognised, same_backbone
from .targets import Target, build_on_meta, find_target

Part = dict[str, Any]  # of a config: a model, or a part of it
Probe = Callable[[Part], Maps]


class Swapped(NamedTuple):
    """A config with new backbones, and whether they compute the same as the old backbones."""
    config: Config
    is_same: bool


def swap_backbone(cfg: Config, arch: str | dict[str, Any] | None = None, checkpoint: str | None = None,
                  optimizer: bool = False, backbone: str | None = None, probe: Probe = probe_backbone) -> Swapped:
    """Returns a config of mmdet or mmseg whose backbone is a `PyramidCPVT` or `CPVT`, and whether it is the same.

    A PVT, PVT v2, MiT or PCPVT can stay the same, see `same_backbone`. Then necks, heads, images and optimizer do not
    change, and checkpoints of the whole model load as they are. Otherwise, the function adapts the channels of necks
    and heads, the normalization of images, and the rules of the optimizer. It also removes the old weights
    (`pretrained`, `init_cfg`, `load_from`). `map_choice.choose_stages` and `map_choice.blocks_by_depth` describe which
    new maps replace the old maps.

    Args:
        cfg: The config, not changed. Its backbone and necks are built and run once, to find their channels.
        arch: The `arch` of the new backbone. Defaults to None: 'small', or the arch of the released weights.
        checkpoint: Weights for the backbone, in any known format. Defaults to None: the released weights that
            `backbone` names, else random weights.
        optimizer: Whether to train with AdamW and this project's rules (no weight decay on position encodings and
            norms). An AdamW of the config keeps its learning rate. Defaults to False.
        backbone: 'same'; 'PyramidCPVT', for maps with the strides of a pyramid; 'CPVT', for one or more maps of stride
            16; or a name of `list_backbones(pretrained=True)`, which sets the arguments and weights of this name.
            Defaults to None: 'same' if possible and there is no `arch` or `checkpoint`, else 'PyramidCPVT'.
        probe: Returns the maps of the old backbone, from its config. Defaults to `probe_backbone`, which runs it.

    Raises:
        CannotSwap: If the config cannot use the new backbone; the message is a sentence with the reason.
        UserError: If `backbone` is unknown, or determines an argument that is given as well.
        ValueError: If `arch` is unknown.
    """
    target = find_target(backbone or 'PyramidCPVT', arch, checkpoint)
    may_stay = backbone is None and arch is None and checkpoint is None
    cfg, checkpoint = copy.deepcopy(cfg), checkpoint or target.checkpoint
    nested = _nested_models(cfg.get('model'))
    owners = [models[-1] for models in nested]
    with in_scope(cfg.get('default_scope')):
        same = _same_backbones(owners, is_required=not may_stay) if backbone == SAME or may_stay else None
        backbones = same or [_fit_backbone(owner, target, target.arch if arch is None else arch, probe,
                                           cfg.get('default_scope') == 'mmseg') for owner in owners]
    for owner, new in zip(owners, backbones, strict=True):
        owner['backbone'] = new if same or not checkpoint else {
            **new, 'init_cfg': dict(type='Pretrained', checkpoint=checkpoint)}
    _forget(owners, ('pretrained',))  # weights of the old backbone
    if not same:
        _forget([*(model for models in nested for model in models), cfg], ('pretrained', 'init_cfg', 'load_from'))
        if not bands_loader(cfg.get('train_dataloader')):  # which a pipeline normalizes
            for models in nested:
                _set_normalization(models, cfg, checkpoint)
    if _is_for_mmpretrain(cfg.get('custom_imports')) and 'mmpretrain.' not in str(cfg.model):
        cfg.custom_imports = None
    new_backbone = build_on_meta(backbones[0])
    adapt_optimizer(cfg.get('optim_wrapper') or {}, new_backbone)
    if optimizer:
        set_optimizer(cfg, new_backbone)
    return Swapped(cfg, is_same=bool(same))


def _nested_models(model: Part | None) -> list[list[Part]]:
    """Returns each detector or segmentor with a backbone as a list: the whole model, parts inside each other, and it.

    A tracker's network for re-identification does not count. Raises CannotSwap if there are none.
    """
    nested = []
    for path, part in walk(model or {}):
        if 'reid' not in path and isinstance(part.get('backbone'), dict) and part['backbone'].get('type'):
            models: list[Any] = [model]
            for key in path:
                models.append(models[-1][key])
            nested.append(models)
    if not nested:
        raise CannotSwap('the config has no backbone with a type, in its model or in a part of it.')
    return nested


def _same_backbones(owners: Sequence[Part], is_required: bool) -> list[Part] | None:
    """Returns configs of PyramidCPVT for backbones that stay the same; None if a backbone cannot stay.

    Raises CannotSwap instead if this `is_required`. Otherwise, it warns if the class of the backbone can stay.
    """
    if not is_required and not all(is_recognised(owner['backbone']) for owner in owners):
        return None
    try:
        return [same_backbone(owner['backbone'], owner.get('pretrained')) for owner in owners]
    except CannotSwap as error:
        if is_required:
            raise
        print_log(f'the backbone becomes a PyramidCPVT, since {error}', 'current', logging.WARNING)
        return None


def _fit_backbone(owner: Part, target: Target, arch: str | dict[str, Any], probe: Probe, is_segmentor: bool) -> Part:
    """Returns the config of the new backbone of a detector or segmentor; adapts its neck and heads, in place."""
    old = probe(owner['backbone'])
    config = target.config(owner['backbone'], old, is_segmentor, arch)
    new = build_on_meta(config)
    adapt_channels(owner, old, Maps(new.out_channels, new.strides), isinstance(new, CPVT))
    return config


def _forget(parts: Sequence[Part], keys: Sequence[str]) -> None:
    """Sets keys that have a value to None, in place."""
    for part in parts:
        part.update({key: None for key in keys if part.get(key)})


def _set_normalization(models: Sequence[Part], cfg: Config, checkpoint: str | None) -> None:
    """Sets mean, standard deviation and channel order in the data preprocessors, in place, so that they fit the
    weights.

    Without weights, it sets the values of ImageNet. It changes the data preprocessors of the models, or the config's if
    the models have none. Models with other numbers of channels stay unchanged.
    """
    if 'in_channels' in models[-1]['backbone']:
        return
    released = find_released(checkpoint) if checkpoint else None
    mean, std = released.normalization if released else IMAGENET
    for part in models if any(model.get('data_preprocessor') for model in models) else [cfg]:
        preprocessor = part.get('data_preprocessor')
        while preprocessor:
            if 'data_preprocessor' not in preprocessor:  # else it wraps another preprocessor, which normalizes
                preprocessor.update(mean=list(mean), std=list(std))
                preprocessor.pop('rgb_to_bgr', None)
                preprocessor['to_rgb' if 'to_rgb' in preprocessor else 'bgr_to_rgb'] = True
            preprocessor = preprocessor.get('data_preprocessor')


def _is_for_mmpretrain(imports: Part | None) -> bool:
    """Returns whether `custom_imports` of a config has modules of mmpretrain only."""
    modules = (imports or {}).get('imports', [])
    modules = [modules] if isinstance(modules, str) else modules
    return bool(modules) and all(module.startswith('mmpretrain') for module in modules)
