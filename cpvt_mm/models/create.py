"""Builds backbones by name, or from a config with its weights."""
from pathlib import Path
from typing import Any

from mmengine.config import Config

from cpvt_mm.weights.released import RELEASED, ROPE_TOP1, SCHEME
from cpvt_mm.zoo.families import PYRAMID_ARCHS
from openmmlab_runs.checkpoints.fitting import load_weights
from openmmlab_runs.checkpoints.loading import backbone_config, build, build_model
from openmmlab_runs.errors import UserError, did_you_mean

from .cpvt import CPVT
from .pyramid_cpvt import PyramidCPVT

TWINS_ARCHS = ('nano', 'tiny', 'small', 'base', 'large')
PAPER_ARCHS = ('tiny', 'small', 'base')


def _dinov2(arch: str, registers: bool) -> tuple[type[CPVT], str, dict[str, Any]]:
    # The models with registers resample the table in another way.
    table = dict(type='LearnablePE', antialias=True) if registers else dict(type='LearnablePE', offset=0.1)
    return CPVT, arch, dict(
        img_size=518, patch_size=14, position_encoding=table, num_register_tokens=4 * registers, layer_scale=1e-5,
        mlp_mode='swiglu' if arch == 'giant' else 'linear')


def _tipsv2(arch: str) -> tuple[type[CPVT], str, dict[str, Any]]:
    cls, _, options = _dinov2(arch, registers=True)
    return cls, arch, {**options, 'img_size': 448, 'num_register_tokens': 1}


def _dinov3(arch: str) -> tuple[type[CPVT], str, dict[str, Any]]:
    return CPVT, arch, dict(
        position_encoding=dict(type='RotaryPE', form='dinov3'), num_register_tokens=4, layer_scale=1e-5, norm_eps=1e-5,
        mlp_mode='swiglu' if arch.endswith('plus') or arch == 'giant' else 'linear')


def _rope_vit(arch: str, kind: str) -> tuple[type[CPVT], str, dict[str, Any]]:
    table = [dict(type='LearnablePE')] if kind.endswith('-ape') else []
    rotary = dict(type='RotaryPE' if kind.startswith('axial') else 'MixedRotaryPE')
    return CPVT, arch, dict(position_encoding=[*table, rotary], layer_scale=1e-5)


# PVT has a table for each stage, PVT v2 and MiT have convolutions in the MLPs, whose zero padding tells positions.
PVT: dict[str, Any] = dict(position_encoding=dict(type='LearnablePE', mode='bilinear'))
PVTV2: dict[str, Any] = dict(patch_mode='overlap', mlp_mode='conv', stage_norm=True, position_encoding=None)

# Name -> class, its `arch`, and other arguments that differ from the defaults.
BACKBONES: dict[str, tuple[type[PyramidCPVT] | type[CPVT], str, dict[str, Any]]] = {
    **{f'pyramid-cpvt-{arch}': (PyramidCPVT, arch, {}) for arch in TWINS_ARCHS},
    **{name: (PyramidCPVT, name, {**PVT, 'cls_token': True}) for name in PYRAMID_ARCHS if name.startswith('pvt-')},
    **{name: (PyramidCPVT, name, PVTV2) for name in PYRAMID_ARCHS if name.startswith(('pvtv2-', 'mit-'))},
    'pvtv2-b2-li': (PyramidCPVT, 'pvtv2-b2', {**PVTV2, 'sr_mode': 'pool', 'mlp_mode': 'relu-conv'}),
    **{f'cpvt-{arch}': (CPVT, arch, {}) for arch in PAPER_ARCHS},
    **{f'deit-{arch}': (CPVT, arch, dict(position_encoding=dict(type='LearnablePE'))) for arch in PAPER_ARCHS},
    **{f'dinov2-{arch}{suffix}': _dinov2(arch, registers) for arch in ('small', 'base', 'large', 'giant')
       for suffix, registers in (('', False), ('-reg4', True))},
    **{f'dinov3-{arch}': _dinov3(arch) for arch in ('small', 'small-plus', 'base', 'large', 'huge-plus')},
    **{f'lingbot-{arch}': _dinov3(arch) for arch in ('small', 'base', 'large', 'giant')},  # the parts are the same
    **{f'tipsv2-{arch}': _tipsv2(arch) for arch in ('base', 'large', 'giant')},
    **{f'rope-vit-{arch}-{kind}': _rope_vit(arch, kind) for kind in ROPE_TOP1 for arch in ('small', 'base', 'large')},
}


def list_backbones(pretrained: bool = False) -> list[str]:
    """Returns the names that `create_backbone` accepts; with `pretrained`, only those with released weights."""
    return [name for name in BACKBONES if name in RELEASED or not pretrained]


def create_backbone(name: str, pretrained: bool = False, **kwargs: Any) -> PyramidCPVT | CPVT:
    """Builds a backbone, in training mode with float32 weights. Call `eval()` before inference.

    `pyramid-*`, `pvt-*`, `pvtv2-*` and `mit-*` are `PyramidCPVT`, others are `CPVT`, with the parts of these models.
    `cpvt-*` have no released weights; those of MiT (not for commercial use), DINOv3 and LingBot have their own licences
    (see `weights.released`). To start a CPVT from others, pass a
    `position_encoding` with a PEG: `dict(type='PEG', init='zero')`, in a list behind the model's own, changes nothing
    until it is trained.

    Args:
        name: One of `list_backbones()`.
        pretrained: Whether to load the released weights; parameters of your `position_encoding` that they lack stay
            random, with a warning. Defaults to False: random weights, or those of `init_cfg`, which are loaded.
        kwargs: Arguments of the class, except `arch` and, with `pretrained`, `init_cfg`; `norm_eps` then defaults to
            the value of the weights.

    Raises:
        UserError: If the name is unknown, or the weights do not exist, cannot be downloaded or do not fit.
        TypeError: If the class has no such argument, or an argument is given twice.
        ValueError: If the value of an argument is out of its range.
    """
    if name not in BACKBONES:
        raise UserError(f'{name!r} is not a backbone{did_you_mean(str(name), BACKBONES)}; there are '
                        f'{", ".join(BACKBONES)}.')
    if not isinstance(pretrained, bool):
        raise TypeError(f"pretrained is {pretrained!r}, but must be True or False: name a file in init_cfg, as "
                        "dict(type='Pretrained', checkpoint=...).")
    cls, arch, options = BACKBONES[name]
    options = {**options, **kwargs}
    weights: dict[str, Any] = {}
    if pretrained:
        if name not in RELEASED:
            raise UserError(f'there are no released weights of {name}: {_alternative(name)}.')
        allowed = dict(allow_missing='position_encoding') if 'position_encoding' in kwargs else {}
        options.setdefault('norm_eps', RELEASED[name].norm_eps)
        weights['init_cfg'] = dict(type='Pretrained', checkpoint=SCHEME + name, **allowed)
    model = cls(arch=arch, **weights, **options)
    if model.init_cfg:  # of mmengine, where a whole model calls it
        model.init_weights()
    return model


def _alternative(name: str) -> str:
    """Returns what to do in place of loading weights that do not exist."""
    deit = name.replace('cpvt', 'deit')
    if deit in RELEASED:
        return (f"create_backbone('{deit}', pretrained=True) is the same transformer with a table of positions, and "
                "position_encoding=dict(type='PEG') in that call puts a random PEG in its place")
    return f'set pretrained=False, or choose one of {", ".join(list_backbones(pretrained=True))}'


def load_backbone(cfg: Config, checkpoint: str | Path | None = None) -> CPVT | PyramidCPVT:
    """Builds the backbone of a config, in eval mode, with the weights of a checkpoint of the whole `model`, or random.

    Raises a UserError if the config has no such backbone, or the checkpoint does not fit.
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
