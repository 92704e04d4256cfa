"""Builds backbones by name, or from a config with its weights."""
import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mmengine.config import Config

from cpvt_mm.zoo.members import MEMBERS, RELEASED, SCHEME
from openmmlab_tools.checkpoints.fitting import load_weights
from openmmlab_tools.checkpoints.loading import backbone_config, build, build_model
from openmmlab_tools.errors import UserError, did_you_mean

from .cpvt import CPVT
from .pyramid_cpvt import PyramidCPVT

NEAR = 0.75  # similarity of arguments that may be meant, such as `in_channels` for timm's `in_chans`
CLASSES: dict[str, type[PyramidCPVT] | type[CPVT]] = dict(PyramidCPVT=PyramidCPVT, CPVT=CPVT)


def list_backbones(pretrained: bool = False) -> list[str]:
    """Returns the names that `create_backbone` accepts; with `pretrained`, only those with released weights."""
    return list(RELEASED if pretrained else MEMBERS)


def create_backbone(name: str, pretrained: bool = False, **kwargs: Any) -> PyramidCPVT | CPVT:
    """Builds a backbone, in training mode with float32 weights. Call `eval()` before inference.

    The names `pyramid-*`, `pvt-*`, `pvtv2-*` and `mit-*` build a `PyramidCPVT`, and other names a `CPVT`, with the
    arguments of the released model. There are no released weights of `cpvt-*`. The weights of MiT (not for commercial
    use), DINOv3 and LingBot have their own licences (see `cpvt_mm/zoo/members.py`).

    To start a CPVT from weights with another position encoding, pass a `position_encoding` with a PEG. In a list after
    the model's own encoding, `dict(type='PEG', init='zero')` does not change the outputs until it is trained.

    Args:
        name: One of `list_backbones()`.
        pretrained: Whether to load the released weights. If they lack parameters of your `position_encoding`, these
            stay random, and there is a warning. Defaults to False: random weights, or the weights of `init_cfg`.
        kwargs: Arguments of the class and fields of its arch, but not `arch`. With `pretrained`, you cannot pass
            `init_cfg`, and `norm_eps` defaults to the value of the weights.

    Raises:
        UserError: If the name is unknown, or the weights do not exist, cannot be downloaded or do not fit.
        TypeError: If the class has no such argument, or an argument is given twice.
        ValueError: If the value of an argument is out of its range.
    """
    if name not in MEMBERS:
        raise UserError(f'{name!r} is not a backbone{did_you_mean(str(name), MEMBERS)}; there are '
                        f'{", ".join(MEMBERS)}.')
    if not isinstance(pretrained, bool):
        raise TypeError(f"pretrained is {pretrained!r}, but must be True or False: name a file in init_cfg, as "
                        "dict(type='Pretrained', checkpoint=...).")
    member = MEMBERS[name]
    cls = CLASSES[member.backbone]
    fields = {key: kwargs.pop(key) for key in cls.arch_fields if key in kwargs}
    arch = {'name': member.name, **member.parts, **fields}
    _check_arguments(name, cls, kwargs)
    options = {**member.options, **kwargs}
    weights: dict[str, Any] = {}
    if pretrained:
        if name not in RELEASED:
            raise UserError(f'there are no released weights of {name}: set pretrained=False, or choose one of '
                            f'{", ".join(RELEASED)}.')
        lacking = [*filter(None, ['position_encoding' if 'position_encoding' in kwargs else '', member.lacks])]
        allowed = dict(allow_missing='|'.join(lacking)) if lacking else {}
        (options if member.backbone == 'PyramidCPVT' else arch).setdefault('norm_eps', RELEASED[name].norm_eps)
        weights['init_cfg'] = dict(type='Pretrained', checkpoint=SCHEME + name, **allowed)
    model = cls(arch=arch, **weights, **options)
    if model.init_cfg:  # of mmengine, where a whole model calls it
        model.init_weights()
    return model


def _check_arguments(name: str, cls: type[PyramidCPVT] | type[CPVT], given: Mapping[str, Any]) -> None:
    """Raises a TypeError for what is no argument of a class, as timm's `in_chans`, with the name that is nearest."""
    known = list(dict.fromkeys([*inspect.signature(cls).parameters, *cls.arch_fields]))
    for argument in given:
        if argument == 'arch':
            raise TypeError(f'arch of {name} is set by its name: leave it out, or build {cls.__name__}(arch=...).')
        if argument not in known:
            near = next(iter(get_close_matches(argument, known, 1, NEAR)), None)
            raise TypeError(f'{name} is a {cls.__name__}, which has no argument {argument}: '
                            + (f'did you mean {near}?' if near else f'it has {", ".join(known)}.'))


def load_backbone(cfg: Config, checkpoint: str | Path | None = None) -> CPVT | PyramidCPVT:
    """Builds the backbone of a config in eval mode, with random weights or with weights from a checkpoint.

    Args:
        cfg: A config of mmdet, mmseg or mmpretrain.
        checkpoint: A checkpoint of the whole `model`. Defaults to None: random weights.

    Raises:
        UserError: If `model.backbone` is no `CPVT` or `PyramidCPVT`, or the checkpoint does not fit.
    """
    config = backbone_config(cfg)
    model = build_model(cfg) if checkpoint else None
    backbone = model.backbone if model else build(cfg, config)
    if not isinstance(backbone, (CPVT, PyramidCPVT)):
        raise UserError(f'model.backbone of config {cfg.filename} is a {type(backbone).__name__}, but must be a CPVT '
                        'or a PyramidCPVT.')
    if model and checkpoint:
        load_weights(model, checkpoint)
    return backbone.eval()
