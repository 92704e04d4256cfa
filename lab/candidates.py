"""Backbones to measure: PyramidCPVT, the same pyramid in other libraries, and other pyramids with a similar size."""
import ast
import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from cpvt_mm.archs import PyramidArch
from cpvt_mm.models.pyramid_cpvt import PATCH_SIZES, PyramidCPVT
from cpvt_mm.models.several_sizes import PAD_SIZE_DIVISOR, group_clips
from cpvt_mm.tokens.batch_info import Output
from cpvt_mm.tokens.grid import Size, pixels
from cpvt_mm.tokens.sizes import pad_or_crop
from cpvt_mm.zoo.pyramid import OURS
from cpvt_mm.zoo.renaming import Format
from cpvt_mm.zoo.twins import MMPRETRAIN, MMSEG, TWINS
from openmmlab_tools.errors import UserError, explain, first_line
from openmmlab_tools.libraries import require

Arguments = dict[str, Any]


class CannotMeasure(UserError):
    """A candidate cannot be measured; the message is one sentence with the reason."""


@dataclass(frozen=True)
class Candidate:
    """A backbone to measure: its name in PEERS, further arguments, and the shapes to compile it for, 'static' or
    'dynamic'.
    """
    name: str
    arguments: Arguments = field(default_factory=dict)
    shapes: Literal['static', 'dynamic'] | None = None

    def __str__(self) -> str:
        arguments = ','.join(f'{key}={value}' for key, value in self.arguments.items())
        return self.name + (f':{arguments}' if arguments else '') + (f' compiled {self.shapes}' if self.shapes else '')


def parse_candidate(text: str) -> Candidate:
    """Parses `NAME` or `NAME:key=value,key=value`; a value that is not a Python literal is a string."""
    name, _, rest = text.partition(':')
    if name not in PEERS:
        raise UserError(f'{name!r} is not a candidate: choose from {", ".join(PEERS)}.')
    arguments = {}
    for item in re.split(r',(?=\w+=)', rest) if rest else ():
        key, equals, value = item.partition('=')
        if not equals or not key.isidentifier():
            raise UserError(f'{item!r} of candidate {text!r} is not an argument: write key=value.')
        try:
            arguments[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[key] = value
    return Candidate(name, arguments)


@dataclass(frozen=True)
class Peer:
    """A class of backbones.

    Attributes:
        load: Imports the library and returns the class.
        arguments: Returns the constructor's arguments for the size of an arch, without the drop path rate.
        format: The format of its weights, if it can load the weights of `PyramidCPVT`.
    """
    load: Callable[[], Callable[..., nn.Module]]
    arguments: Callable[[PyramidArch], Arguments]
    format: Format | None = None


def _from(library: str, name: str) -> Callable[[], Callable[..., nn.Module]]:
    def load() -> Callable[..., nn.Module]:
        require(library)
        return getattr(importlib.import_module(f'{library}.models.backbones'), name)
    return load


def _timm() -> Callable[..., nn.Module]:
    try:
        twins = importlib.import_module('timm.models.twins')
    except (ImportError, RuntimeError) as error:  # a torchvision for another version of torch raises either
        raise ImportError(f'timm cannot be imported ({first_line(error)}): pip install timm, with the torchvision that '
                          'goes with your torch') from error

    def build(**arguments: object) -> nn.Module:
        model = twins.Twins(**arguments)
        model.forward = partial(model.forward_intermediates, intermediates_only=True)
        return model

    return build


class Grouped(PyramidCPVT):
    """Runs a separate batch for each padded size. Packed images run at once with the same results."""

    def forward(self, x: Tensor, valid_sizes: Sequence[Size] | None = None, num_frames: int | None = None
                ) -> tuple[Output, ...]:
        return in_groups(self, x, valid_sizes or [(x.shape[2], x.shape[3])] * len(x))


def in_groups(model: PyramidCPVT, x: Tensor, sizes: Sequence[Size]) -> tuple[Tensor, ...]:
    """Computes the padded maps of images `(B, 3, H, W)` of these sizes without padding, a pass for each padded size."""
    maps: dict[int, tuple[Tensor, ...]] = {}
    whole = x.shape[2], x.shape[3]
    for (padded, _), places in group_clips(sizes, 1, PAD_SIZE_DIVISOR).items():
        images = torch.cat([pad_or_crop(x[i:i + 1, :, :sizes[i][0], :sizes[i][1]], *padded) for i in places])
        outs = model.outputs(*model.stem(*pixels(images)))
        outs = cast(tuple[Tensor, ...], model.fit_outputs(outs, padded, whole))
        maps |= zip(places, zip(*(out.split(1) for out in outs), strict=True), strict=True)
    return tuple(map(torch.cat, zip(*(maps[i] for i in range(len(x))), strict=True)))


def _lists(arch: PyramidArch) -> Arguments:
    return {name: list(values) for name, values in asdict(arch).items() if isinstance(values, list | tuple)}


def _pvt(arch: PyramidArch) -> Arguments:
    # PVT has the same sizes as Twins: a head has as many channels as the first stage.
    return dict(embed_dims=arch.embed_dims[0], num_layers=arch.depths, num_heads=arch.num_heads,
                mlp_ratios=arch.mlp_ratios, sr_ratios=arch.sr_ratios)


PEERS = {
    'cpvt_mm': Peer(lambda: PyramidCPVT, lambda arch: dict(arch=asdict(arch)), OURS),
    'grouped': Peer(lambda: Grouped, lambda arch: dict(arch=asdict(arch), padding='exact'), format=OURS),
    'mmseg': Peer(_from('mmseg', 'PCPVT'), lambda arch: dict(_lists(arch), qkv_bias=True), MMSEG),
    'mmpretrain': Peer(_from('mmpretrain', 'PCPVT'), lambda arch: dict(
        arch=dict(_lists(arch), patch_sizes=list(PATCH_SIZES), strides=list(PATCH_SIZES)), qkv_bias=True,
        out_indices=(0, 1, 2, 3)), MMPRETRAIN),
    'timm': Peer(_timm, lambda arch: dict(_lists(arch), num_classes=0), format=TWINS),
    'pvt': Peer(_from('mmdet', 'PyramidVisionTransformer'), _pvt),
    'pvtv2': Peer(_from('mmdet', 'PyramidVisionTransformerV2'), _pvt),
}


def build_backbone(candidate: Candidate, arch: PyramidArch, drop_path_rate: float) -> nn.Module:
    """Builds a candidate, not compiled: images `(B, 3, H, W)` -> the maps of four stages."""
    peer = PEERS[candidate.name]
    try:
        return peer.load()(**{**peer.arguments(arch), 'drop_path_rate': drop_path_rate, **candidate.arguments})
    except Exception as error:  # imports and constructors can raise any error
        raise CannotMeasure(f'{candidate} cannot be built ({explain(error)}).') from error
