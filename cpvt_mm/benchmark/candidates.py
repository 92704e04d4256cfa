"""What can be measured: this backbone, other implementations of the same pyramid, and pyramids of its size."""
import ast
import importlib
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from torch import nn

from cpvt_mm.checkpoints.formats import Format
from cpvt_mm.checkpoints.pyramid import CPVT_MM, MMPRETRAIN, MMSEG, TWINS
from cpvt_mm.errors import UserError, first_line
from cpvt_mm.models.backbones.pyramid_cpvt import PATCH_SIZES, PyramidArch
from cpvt_mm.stack import require

from .original import import_original

Arguments = dict[str, Any]


class CannotMeasure(UserError):
    """Why there is no value of a candidate, in one sentence."""


@dataclass(frozen=True)
class Candidate:
    """One thing to measure.

    Attributes:
        name: One of PEERS.
        arguments: Further ones of its constructor.
        shapes: 'static' or 'dynamic' if torch.compile compiles it for such shapes. Defaults to None: it does not.
    """
    name: str
    arguments: Arguments = field(default_factory=dict)
    shapes: Literal['static', 'dynamic'] | None = None

    def __str__(self) -> str:
        arguments = ','.join(f'{key}={value}' for key, value in self.arguments.items())
        return self.name + (f':{arguments}' if arguments else '') + (f' compiled {self.shapes}' if self.shapes else '')

    def compile(self, model: nn.Module) -> None:
        """Compiles a model, at its first call, if it is to be."""
        if self.shapes:
            model.compile(dynamic=self.shapes == 'dynamic')

    def plain(self) -> 'Candidate':
        """The one that does the same work, once, and eagerly."""
        arguments = {key: value for key, value in self.arguments.items() if key != 'with_cp'}
        return Candidate(self.name, arguments)


def parse_candidate(text: str) -> Candidate:
    """Reads `NAME` or `NAME:key=value,key=value`; a value that is no literal of Python is a string.

    Raises:
        UserError: If there is no such name, or an argument has no value.
    """
    name, _, rest = text.partition(':')
    if name not in PEERS:
        raise UserError(f'{name!r} is no candidate: take {", ".join(PEERS)}.')
    arguments = {}
    for item in re.split(r',(?=\w+=)', rest) if rest else ():
        key, equals, value = item.partition('=')
        if not equals or not key.isidentifier():
            raise UserError(f'{item!r} of candidate {text!r} is no argument: write key=value.')
        try:
            arguments[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[key] = value
    return Candidate(name, arguments)


@dataclass(frozen=True)
class Peer:
    """A class of backbones.

    Attributes:
        load: Imports what it needs and returns the class.
        arguments: Those of its constructor, but for the rate of stochastic depth, that make it of an arch's size.
        type: Under which configs know it, with its scope; None for one that is in no registry.
        format: The names of its weights, if it can have those of `PyramidCPVT`; else None.
    """
    load: Callable[[], type[nn.Module]]
    arguments: Callable[[PyramidArch], Arguments]
    type: str | None = None
    format: Format | None = None

    def complete(self, candidate: Candidate, arch: PyramidArch, drop_path_rate: float) -> Arguments:
        """All arguments of a candidate that is one of these."""
        return {**self.arguments(arch), 'drop_path_rate': drop_path_rate, **candidate.arguments}


def _from(library: str, name: str) -> Callable[[], type[nn.Module]]:
    def load() -> type[nn.Module]:
        require(library)
        return getattr(importlib.import_module(f'{library}.models.backbones'), name)
    return load


def _timm() -> type[nn.Module]:
    from timm.models.twins import Twins

    class Backbone(Twins):

        def forward(self, x):
            return tuple(self.forward_intermediates(x, intermediates_only=True))

    return Backbone


def _lists(arch: PyramidArch) -> Arguments:
    return {name: list(values) for name, values in asdict(arch).items()}


def _pvt(arch: PyramidArch) -> Arguments:
    # PVT's sizes are those of Twins: one head has as many channels as the first stage.
    return dict(embed_dims=arch.embed_dims[0], num_layers=arch.depths, num_heads=arch.num_heads,
                mlp_ratios=arch.mlp_ratios, sr_ratios=arch.sr_ratios)


PEERS = {
    'cpvt_mm': Peer(_from('cpvt_mm', 'PyramidCPVT'), lambda arch: dict(arch=asdict(arch)), 'cpvt_mm.PyramidCPVT',
                    CPVT_MM),
    'mmseg': Peer(_from('mmseg', 'PCPVT'), lambda arch: dict(_lists(arch), qkv_bias=True), 'mmseg.PCPVT', MMSEG),
    'mmpretrain': Peer(_from('mmpretrain', 'PCPVT'), lambda arch: dict(
        arch=dict(_lists(arch), patch_sizes=list(PATCH_SIZES), strides=list(PATCH_SIZES)), qkv_bias=True,
        out_indices=(0, 1, 2, 3)), 'mmpretrain.PCPVT', MMPRETRAIN),
    'timm': Peer(_timm, lambda arch: dict(_lists(arch), num_classes=0), format=TWINS),
    'twins': Peer(import_original, lambda arch: dict(_lists(arch), num_classes=0, qkv_bias=True), format=TWINS),
    'pvt': Peer(_from('mmdet', 'PyramidVisionTransformer'), _pvt, 'mmdet.PyramidVisionTransformer'),
    'pvtv2': Peer(_from('mmdet', 'PyramidVisionTransformerV2'), _pvt, 'mmdet.PyramidVisionTransformerV2'),
}


def build_backbone(candidate: Candidate, arch: PyramidArch, drop_path_rate: float) -> nn.Module:
    """Builds a candidate, not compiled; it takes images `(B, 3, H, W)` and returns the maps of its four stages.

    Raises:
        CannotMeasure: If its library is not there, or the class does not take the arguments.
    """
    peer = PEERS[candidate.name]
    try:
        return peer.load()(**peer.complete(candidate, arch, drop_path_rate))
    except Exception as error:  # whatever an import or a constructor raises
        raise CannotMeasure(f'{candidate} cannot be built ({type(error).__name__}: {first_line(error)}).') from error
