"""The named sizes of both backbones, and those that a config spells out."""
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, TypeVar

from torch import Tensor

from cpvt_mm.tokens.grid import round_up
from cpvt_mm.tokens.validation import check_names, check_positive

Arch = TypeVar('Arch')
STRIDES = (4, 8, 16, 32)  # of the stages of a pyramid, in pixels


@dataclass(frozen=True)
class PyramidArch:
    """Widths and depths of the stages: each attribute has one int for each of the four."""
    embed_dims: Sequence[int]  # channels of a token
    depths: Sequence[int]  # numbers of blocks
    num_heads: Sequence[int]  # each divides the stage's `embed_dims`
    mlp_ratios: Sequence[int]  # hidden channels of an MLP, as a multiple of `embed_dims`
    sr_ratios: Sequence[int]  # by which spatial reduction shrinks each side of the key grid

    def __post_init__(self) -> None:
        for name, values in asdict(self).items():
            if not isinstance(values, Sequence) or len(values) != len(STRIDES):
                raise ValueError(f'arch: {name} is {values!r}, but must be {len(STRIDES)} ints, one for each stage.')
            for value in values:
                check_positive(f'arch: {name}', value)
        for width, heads in zip(self.embed_dims, self.num_heads, strict=True):
            if width % heads:
                raise ValueError(f'arch: num_heads has {heads}, but must divide the embed_dims of its stage, {width}.')


def _twins(*depths: int) -> PyramidArch:
    return PyramidArch(embed_dims=(64, 128, 320, 512), depths=depths, num_heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4),
                       sr_ratios=(8, 4, 2, 1))


def _pvtv2(*depths: int, narrow: bool = False, mlp_ratios: Sequence[int] = (8, 8, 4, 4)) -> PyramidArch:
    widths = (32, 64, 160, 256) if narrow else (64, 128, 320, 512)
    return replace(_twins(*depths), embed_dims=widths, mlp_ratios=mlp_ratios)


def _mit(*depths: int, narrow: bool = False) -> PyramidArch:
    return _pvtv2(*depths, narrow=narrow, mlp_ratios=(4, 4, 4, 4))


PYRAMID_ARCHS = {
    'nano': PyramidArch(embed_dims=(32, 64, 128, 192), depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 6),
                        mlp_ratios=(4, 4, 4, 4), sr_ratios=(8, 4, 2, 1)),
    'tiny': _twins(2, 2, 2, 2),
    'small': _twins(3, 4, 6, 3),
    'base': _twins(3, 4, 18, 3),
    'large': _twins(3, 8, 27, 3),
    # PVT (arXiv 2102.12122, table 1) has the sizes of Twins.
    'pvt-tiny': _twins(2, 2, 2, 2),
    'pvt-small': _twins(3, 4, 6, 3),
    'pvt-medium': _twins(3, 4, 18, 3),
    'pvt-large': _twins(3, 8, 27, 3),
    # PVT v2 (arXiv 2106.13797, table 1) and MiT (SegFormer, arXiv 2105.15203, table 6); `create_backbone` has the
    # options.
    'pvtv2-b0': _pvtv2(2, 2, 2, 2, narrow=True),
    'pvtv2-b1': _pvtv2(2, 2, 2, 2),
    'pvtv2-b2': _pvtv2(3, 4, 6, 3),
    'pvtv2-b3': _pvtv2(3, 4, 18, 3),
    'pvtv2-b4': _pvtv2(3, 8, 27, 3),
    'pvtv2-b5': _mit(3, 6, 40, 3),
    'mit-b0': _mit(2, 2, 2, 2, narrow=True),
    'mit-b1': _mit(2, 2, 2, 2),
    'mit-b2': _mit(3, 4, 6, 3),
    'mit-b3': _mit(3, 4, 18, 3),
    'mit-b4': _mit(3, 8, 27, 3),
    'mit-b5': _mit(3, 6, 40, 3),
}


@dataclass(frozen=True)
class PlainArch:
    """Width and depth of a plain backbone."""
    embed_dims: int  # channels of a token
    depth: int  # number of blocks
    num_heads: int  # divides `embed_dims`
    mlp_ratio: int = 4  # hidden channels of an MLP, as a multiple of `embed_dims`

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_positive(f'arch: {name}', value)
        if self.embed_dims % self.num_heads:
            raise ValueError(f'arch: num_heads is {self.num_heads}, but must divide embed_dims, {self.embed_dims}.')


PLAIN_ARCHS = {
    'tiny': PlainArch(embed_dims=192, depth=12, num_heads=3),
    'small': PlainArch(embed_dims=384, depth=12, num_heads=6),
    'base': PlainArch(embed_dims=768, depth=12, num_heads=12),
    'large': PlainArch(embed_dims=1024, depth=24, num_heads=16),
    # With mlp_mode='swiglu', the first is DINOv2's largest, the others are DINOv3's.
    'giant': PlainArch(embed_dims=1536, depth=40, num_heads=24),
    'small-plus': PlainArch(embed_dims=384, depth=12, num_heads=6, mlp_ratio=6),
    'huge-plus': PlainArch(embed_dims=1280, depth=32, num_heads=20, mlp_ratio=6),
}


def parse_arch(arch: str | dict[str, Any], cls: type[Arch], named: Mapping[str, Arch]) -> Arch:
    """Returns `named[arch]`, or builds the dataclass `cls` from a dict; raises a ValueError if neither fits."""
    parts = fields(cls)  # type: ignore[arg-type]  # cls is a dataclass
    allowed = [field.name for field in parts]
    required = [field.name for field in parts if field.default is MISSING]
    if isinstance(arch, dict):
        check_names('a key of arch', arch, allowed)
        if not set(required) <= set(arch):
            raise ValueError(f'arch has only {", ".join(arch)}, but must have {", ".join(required)}.')
        return cls(**arch)
    if arch not in list(named):
        raise ValueError(f'{arch!r} is not an arch; allowed are {", ".join(named)}, or a dict of {", ".join(allowed)}.')
    return named[arch]


FIRST_LAYER = re.compile(r'((?:stages\.\d+\.)?)blocks\.\d+\.mlp\.fc1\.weight')


def name_of(weights: Mapping[str, Tensor]) -> str | None:
    """Returns the name of the arch of a backbone with these weights; None if they are of no named one."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for name, tensor in weights.items():
        if match := FIRST_LAYER.fullmatch(name):
            shapes.setdefault(match[1], []).append(tuple(tensor.shape))
    found = [(len(of_stage), *of_stage[0]) for of_stage in shapes.values()]
    families = (('pvtv2', 'mit') if 'stages.0.norm.weight' in weights else
                ('pvt-',) if 'stages.3.position_encoding.0.table' in weights else ('',))
    for name, arch in PYRAMID_ARCHS.items():
        stages = zip(arch.depths, arch.mlp_ratios, arch.embed_dims, strict=True)
        if name.startswith(families) and found == [(depth, ratio * width, width) for depth, ratio, width in stages]:
            return name
    for name, plain in PLAIN_ARCHS.items():
        linear = plain.mlp_ratio * plain.embed_dims
        gated = 2 * round_up(linear * 2 // 3, 8)
        if found in [[(plain.depth, hidden, plain.embed_dims)] for hidden in (linear, gated)]:
            return name
    return None
